"""Statements of MATCH_RECOGNIZE over one row a second, for the transcripts of the language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.testing import Add, Watermark
from times import t
from transcripts import play

SCHEMA = "id string, kind string, price int, at timestamp"


def rows(prices: list[int] | str, key: str = "a") -> list[dict[str, Any]]:
    """One row a second: prices, or kinds as single letters."""
    return [
        {
            "id": key,
            "kind": each if isinstance(each, str) else None,
            "price": each if isinstance(each, int) else second,
            "at": t(second),
        }
        for second, each in enumerate(prices)
    ]


def run(text: str, given: list[dict[str, Any]], *, cut: int | None = None) -> list[dict[str, Any]]:
    """All rows of a statement, which do not depend on how its input is divided."""
    parts = [given] if cut is None else [given[:cut], given[cut:]]
    steps: list[Any] = [step for part in parts for step in (Add(part), Watermark(part[-1]["at"]))]
    out = play(lambda stream: stream.match_recognize(text), [*steps, Watermark(None)], schema=SCHEMA, event_time="at")
    return [row for step in out for row in step]


def run_together(statements: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[list[dict[str, Any]]]:
    """The rows of several statements, each with its own input, as steps of one flow."""
    given = [{**row, "id": str(number)} for number, (_, own) in enumerate(statements) for row in own]

    def build(stream: Any) -> Any:
        return {
            f"found{number}": stream.where(f"id = '{number}'").match_recognize(text)
            for number, (text, _) in enumerate(statements)
        }

    out = play(build, [Add(given), Watermark(None)], schema=SCHEMA, event_time="at")
    return [[row for step in out for row in step[f"found{number}"]] for number in range(len(statements))]


def lettered(pattern: str, more: str = "") -> str:
    """A statement over single letters. A variable takes its own letter."""
    names = sorted({letter for letter in pattern.replace("PERMUTE", "") if letter in "ABCD"})
    defined = ", ".join(f"{name} as kind = '{name.lower()}'" for name in names)
    return f"""partition by id order by at measures match_number() as n all rows per match {more}
               pattern ({pattern}) define {defined}"""


def matched(found: list[dict[str, Any]]) -> list[str]:
    """Each match as the letters it took."""
    matches: dict[int, str] = {}
    for row in found:
        matches[row["n"]] = matches.get(row["n"], "") + row["kind"]
    return list(matches.values())


def letters(pattern: str, given: str, more: str = "", **options: Any) -> list[str]:
    """The matches of a pattern over single letters, each as the letters it took."""
    return matched(run(lettered(pattern, more), rows(given), **options))
