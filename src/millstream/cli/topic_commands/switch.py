"""`millstream switch`: changes which topic the readers of a name read."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.output import show_done, show_table
from millstream.cli.session import Session, command, complete_topics
from millstream.cli.starts import read_start
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.log import Broker, Switch

AT_FORMS = "earliest, latest, corresponding, or a time as in 2025-06-01T12:00:00Z"


def register(app: typer.Typer) -> None:
    command(app, "switch")(switch)


def switch(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_topics)],
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", autocompletion=complete_topics)] = None,
    at: Annotated[str, typer.Option(metavar="START", help=f"Where readers start: {AT_FORMS}.")] = "earliest",
    back: Annotated[bool, typer.Option("--back", help="Revert the last switch of this name.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Remove all switches of this name.")] = False,
) -> None:
    """Switch the readers of a name to another topic, all at once; running ones follow at their next poll.

    The old topic stays, and its writers keep writing to it. A group that has read the topic before continues where it
    was. With --at corresponding, readers start at the time they had reached in the old topic. Without a topic, --back
    or --off, this lists all topics that the name has referred to.

    \b
    Example:
      millstream switch totals totals.v2
      millstream switch totals --back
    """
    if (topic is not None) + back + off > 1:
        raise InvalidInput("a topic, --back and --off exclude each other", next_step="choose one of them")
    with session.log() as log:
        if topic is not None:
            _show(session, log.switch(name, topic, at=_read_at(at)))
        elif back:
            _show(session, log.switch_back(name, at=_read_at(at)))
        elif off:
            log.unswitch(name)
            show_done(
                session, f"'{name}' refers to the topic of that name again", document={"name": name, "read": name}
            )
        else:
            _list(session, log, name)


def _read_at(text: str) -> str | datetime:
    start = text if text == "corresponding" else read_start(text)
    if isinstance(start, int):
        raise InvalidInput(f"'{text}' is not a start position for every partition", next_step=f"give {AT_FORMS}")
    return start


def _show(session: Session, made: Switch) -> None:
    document = {"name": made.name, "read": made.topic, "versions": list(made.versions)}
    show_done(session, f"readers of '{made.name}' read topic '{made.topic}'", document=document)


def _list(session: Session, log: Broker, name: str) -> None:
    versions = log.topic_versions(name)
    rows = [(version.topic, "yes" if version.is_current else "no") for version in versions]
    document = [{"topic": version.topic, "read": version.is_current} for version in versions]
    show_table(session, ["topic", "read now"], rows, document=document, empty="")
