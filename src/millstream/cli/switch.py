"""`millstream switch`: what readers of a name read from now on."""

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
    at: Annotated[str, typer.Option(metavar="START", help=f"Where readers begin: {AT_FORMS}.")] = "earliest",
    back: Annotated[bool, typer.Option("--back", help="Take the last switch of this name back.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Forget that this name was ever switched.")] = False,
) -> None:
    """Switch the readers of a name to another topic, all at once; running ones come over at their next poll.

    The old topic stays, and who writes to it goes on writing to it. A group that has read the topic before goes on
    where it was. With --at corresponding readers begin at the time they had come to in the old topic. Without a
    topic, and without --back or --off, the topics that the name has stood for are listed.

    \b
    Example:
      millstream switch totals totals.v2
      millstream switch totals --back
    """
    if (topic is not None) + back + off > 1:
        raise InvalidInput("a topic, --back and --off say different things", next_step="choose one of them")
    with session.log() as log:
        if topic is not None:
            _show(session, log.switch(name, topic, at=_read_at(at)))
        elif back:
            _show(session, log.switch_back(name, at=_read_at(at)))
        elif off:
            log.unswitch(name)
            show_done(session, f"'{name}' stands for its own topic again", document={"name": name, "read": name})
        else:
            _list(session, log, name)


def _read_at(text: str) -> str | datetime:
    start = text if text == "corresponding" else read_start(text)
    if isinstance(start, int):
        raise InvalidInput(f"'{text}' does not say where to begin in every partition", next_step=f"give {AT_FORMS}")
    return start


def _show(session: Session, made: Switch) -> None:
    document = {"name": made.name, "read": made.topic, "versions": list(made.versions)}
    show_done(session, f"readers of '{made.name}' read topic '{made.topic}'", document=document)


def _list(session: Session, log: Broker, name: str) -> None:
    versions = log.topic_versions(name)
    rows = [(version.topic, "yes" if version.is_current else "no") for version in versions]
    document = [{"topic": version.topic, "read": version.is_current} for version in versions]
    show_table(session, ["topic", "read now"], rows, document=document, empty="")
