"""A dataclass of options is one parameter of a function, and each of its fields is an option of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from millstream.cli.session import Options, Session, command


@dataclass(frozen=True)
class Place(Options):
    at: Annotated[str, typer.Option(help="Where.")]
    floors: Annotated[list[int] | None, typer.Option(help="Which floors.")] = None
    is_open: Annotated[bool, typer.Option("--open", help="Whether it is open.")] = False


@pytest.fixture
def got() -> list[tuple[Session, str, Place, int]]:
    return []


@pytest.fixture
def app(got: list[tuple[Session, str, Place, int]]) -> typer.Typer:
    made = typer.Typer()

    def visit(session: Session, name: str, *, place: Place, hours: int = 2) -> None:
        """Visit a place."""
        got.append((session, name, place, hours))

    @made.callback()
    def root(ctx: typer.Context) -> None:
        ctx.obj = Session(address="data", json=False)

    command(made, "visit")(visit)
    return made


def test_options_arrive_as_one_value(app: typer.Typer, got: list[tuple[Session, str, Place, int]]) -> None:
    runner = CliRunner()
    whole = ["visit", "ann", "--at", "tower", "--floors", "1", "--floors", "2", "--open", "--hours", "3", "--json"]
    for arguments in (whole, ["visit", "bob", "--at", "cellar"]):
        assert runner.invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert got == [
        (Session("data", json=True), "ann", Place("tower", [1, 2], is_open=True), 3),
        (Session("data", json=False), "bob", Place("cellar"), 2),
    ]


def test_a_field_without_a_default_is_required_and_all_are_in_the_help(app: typer.Typer, got: list[object]) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["visit", "ann"]).exit_code == 2
    assert not got
    shown = runner.invoke(app, ["visit", "--help"]).output
    assert all(each in shown for each in ("--at", "Where.", "--floors", "--open", "--hours"))
