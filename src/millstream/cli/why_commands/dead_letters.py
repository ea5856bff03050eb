"""`millstream dead-letters`: what could not be handled: counted, shown, tried with a fixed flow, and sent again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.job_commands.supervised import Params, parameters
from millstream.cli.output import Cell, ask, count_text, show_details, show_done, show_table
from millstream.cli.session import Session, TopicName, Yes, subcommands
from millstream.errors import InvalidInput
from millstream.plan.parameters import set_parameters

if TYPE_CHECKING:
    from millstream.log import Broker
    from millstream.plan.flow import Flow

Partition = Annotated[int, typer.Argument(metavar="PARTITION", help="Of the dead letter, not of its record.")]
Offset = Annotated[int, typer.Argument(metavar="OFFSET")]


def register(app: typer.Typer) -> None:
    help = "Count and show dead letters, try them with a fixed flow, and send them again."
    subcommands(app, "dead-letters", help, list_letters, show, rehearse, resend)


def list_letters(session: Session, topic: TopicName) -> None:
    """Count the dead letters of a topic by reason.

    \b
    Example:
      millstream dead-letters list scores.dead
    """
    from millstream.provenance.dead_letters import counted

    with session.log() as log:
        found = counted(log, topic)
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        newest = f"{each['newest']['partition']} {each['newest']['offset']}"
        rows.append((each["letters"], each["resent"], each["topic"], newest, each["reason"]))
    titles = ["letters", "resent", "from", "newest", "reason"]
    show_table(session, titles, rows, document=found, empty=f"there are no dead letters in '{topic}'")


def show(session: Session, topic: TopicName, partition: Partition, offset: Offset) -> None:
    """Show one dead letter: its bytes, the reason, and where its record was read.

    \b
    Example:
      millstream dead-letters show scores.dead 0 17
    """
    from millstream.provenance.dead_letters import letter_at, resent_places

    with session.log() as log:
        letter = letter_at(log, topic, (partition, offset))
        resent = letter.place in resent_places(log, topic)
    origin = letter.document()["origin"]
    shown: dict[str, Cell] = {"reason": letter.reason, "at": None if letter.at is None else str(letter.at)}
    shown["origin"] = " ".join(str(value) for value in origin.values()) if letter.has_origin else None
    shown |= {"value": None if letter.value is None else repr(letter.value)[2:-1], "resent": "yes" if resent else "no"}
    show_details(session, shown, document={**letter.document(), "resent": resent})


def rehearse(
    session: Session,
    topic: TopicName,
    file: Annotated[Path, typer.Option(metavar="FILE", help="The Python file of the fixed flow.")],
    flow: Annotated[str | None, typer.Option(help="Which flow, if the file has several.")] = None,
    param: Params = None,
) -> None:
    """Count how many dead letters a fixed flow would take, by reason. Nothing is written.

    \b
    Example:
      millstream dead-letters rehearse scores.dead --file flow.py
    """
    from millstream.cli.job_commands.run import chosen_flow

    set_parameters(parameters(param))
    chosen, _ = chosen_flow(file, flow, session.address)
    with session.log() as log:
        found = rehearsed_letters(chosen, log, topic)
    rows: list[tuple[Cell, ...]] = []
    for each in found["reasons"]:
        left = "; ".join(f"{reason} ({count})" for reason, count in each["left"].items())
        rows.append((each["letters"], each["taken"], each["reason"], left or None))
    titles = ["letters", "taken", "reason", "dead again"]
    show_table(session, titles, rows, document=found, empty=f"there are no dead letters in '{topic}'")


def rehearsed_letters(flow: Flow, log: Broker, topic: str) -> dict[str, Any]:
    """What a flow would do with the dead letters of a topic."""
    import tempfile

    from millstream.jobs.results.broker_address import address_of
    from millstream.provenance.dead_letters import letters_of
    from millstream.provenance.rehearsing import rehearsed

    with tempfile.TemporaryDirectory(prefix="millstream-rehearsal-") as folder:
        return rehearsed(flow, list(letters_of(log, topic)), broker=address_of(log), folder=Path(folder))


def resend(
    session: Session,
    topic: TopicName,
    partition: Annotated[int | None, typer.Argument(metavar="PARTITION")] = None,
    offset: Annotated[int | None, typer.Argument(metavar="OFFSET")] = None,
    all_letters: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    yes: Yes = False,
) -> None:
    """Send the records of dead letters again, to the topics that they came from: each once, however often it is called.

    \b
    Example:
      millstream dead-letters resend scores.dead 0 17
      millstream dead-letters resend scores.dead --all
    """
    from millstream.provenance.dead_letters import resend as sent_again

    if all_letters == (offset is not None) or (partition is None) != (offset is None):
        raise InvalidInput("which dead letters?", next_step="name one: PARTITION OFFSET, or --all")
    place = None if partition is None or offset is None else (partition, offset)
    if place is None:
        ask(f"Send the records of all dead letters of '{topic}' again?", yes=yes)
    with session.log() as log:
        done: dict[str, Any] = sent_again(log, topic, place)
    lines = [f"sent {count_text(done['sent'], 'record')} again"]
    if done["already_sent"]:
        lines.append(f"{done['already_sent']:,} had been sent before")
    if done["expired"]:
        lines.append(f"{done['expired']:,} could not be sent: their records have expired, or their origin is unknown")
    show_done(session, *lines, document=done)
