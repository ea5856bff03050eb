"""Only the module of the command that is called is imported: `millstream run` does not wait for those of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from millstream.cli.failures import Root

# `millstream --help` lists them in this order.
MODULES = {
    "init": "job_commands.init",
    "run": "job_commands.run",
    "up": "job_commands.up",
    "console": "job_commands.up",
    "bundle": "job_commands.up",
    "why-silent": "job_commands.metrics",
    "why": "why_commands.why",
    "trace": "why_commands.trace",
    "provenance": "why_commands.provenance",
    "produce": "topic_commands.produce",
    "consume": "topic_commands.consume",
    "tail": "topic_commands.tail",
    "switch": "topic_commands.switch",
    "follow": "bridge_commands.follow",
    "rebuild": "bridge_commands.follow",
    "pack": "job_commands.pack",
    "jobs": "job_commands.jobs",
    "accounts": "job_commands.accounts",
    "dead-letters": "why_commands.dead_letters",
    "alerts": "job_commands.alerts",
    "table": "job_commands.table",
    "topics": "topic_commands.topics",
    "groups": "topic_commands.groups",
    "queues": "topic_commands.queues",
    "listen": "bridge_commands.listen",
    "bridge": "bridge_commands.bridge",
    "capture": "bridge_commands.capture",
    "bench": "job_commands.bench",
}


class Commands(Mapping[str, TyperCommand | TyperGroup]):
    """The commands by their names, each imported when it is looked up."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in self._imported:
            module = import_module(f"millstream.cli.{MODULES[name]}")
            registered = typer.Typer(rich_markup_mode=None)
            module.register(registered)
            self._imported |= typer.main.get_group(registered).commands
        found: TyperCommand | TyperGroup = self._imported[name]
        return found

    def __contains__(self, name: object) -> bool:
        return name in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class Millstream(Root):
    """The outermost command, with the commands of this table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names alone: to list them is no reason to import them."""
        return list(MODULES)
