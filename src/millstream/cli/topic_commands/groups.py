"""`millstream groups`: offsets and lag of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.output import count_text, show_details, show_done, show_table
from millstream.cli.session import GroupName, Session, complete_topics, subcommands
from millstream.cli.starts import FORMS, read_start
from millstream.terminal import write_line

if TYPE_CHECKING:
    from millstream.log import GroupInfo


def register(app: typer.Typer) -> None:
    subcommands(
        app, "groups", "List, describe, reset and delete consumer groups.", list_groups, describe, reset, delete
    )


def list_groups(session: Session) -> None:
    """List the consumer groups.

    \b
    Example:
      millstream groups list --json | jq '.[] | select(.lag > 1000)'
    """
    infos: list[GroupInfo] = []
    if not session.missing_folder():
        with session.log() as log:
            infos = [log.describe_group(name) for name in log.groups()]
    rows = [(info.name, len(info.members), ", ".join(_topics(info)) or None, info.lag) for info in infos]
    document = [
        {"name": info.name, "members": len(info.members), "topics": _topics(info), "lag": info.lag} for info in infos
    ]
    show_table(session, ["group", "members", "topics", "lag"], rows, document=document, empty=session.nothing("groups"))


def describe(session: Session, name: GroupName) -> None:
    """Show a group's committed offsets and current owner of each partition.

    \b
    Example:
      millstream groups describe mails
    """
    with session.log() as log:
        _show(session, log.describe_group(name))


def reset(
    session: Session,
    name: GroupName,
    topic: Annotated[str, typer.Option(help="The topic.", autocompletion=complete_topics)],
    to: Annotated[str, typer.Option(metavar="START", help=f"Where the group reads next: {FORMS}.")],
) -> None:
    """Reset the offsets of a group in a topic. Its consumers must be stopped.

    \b
    Example:
      millstream groups reset mails --topic scores --to earliest
    """
    with session.log() as log:
        _show(session, log.reset_group(name, topic, read_start(to)))


def delete(session: Session, name: GroupName) -> None:
    """Delete a group and its committed offsets. Its consumers must be stopped.

    \b
    Example:
      millstream groups delete mails
    """
    with session.log() as log:
        log.delete_group(name)
    show_done(session, f"deleted group '{name}'", document={"deleted": name})


def _topics(info: GroupInfo) -> list[str]:
    return sorted({part.topic for part in info.partitions})


def _show(session: Session, info: GroupInfo) -> None:
    document: dict[str, Any] = {
        "name": info.name,
        "members": list(info.members),
        "lag": info.lag,
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "committed": part.next_offset,
                "end": part.end_offset,
                "lag": part.lag,
                "owner": part.owner,
            }
            for part in info.partitions
        ],
    }
    if not session.json:
        members = count_text(len(info.members), "member")
        show_details(session, {"group": info.name, "members": members, "lag": info.lag}, document=None)
        write_line("")
    rows = [(p.topic, p.partition, p.next_offset, p.end_offset, p.lag, p.owner) for p in info.partitions]
    titles = ["topic", "partition", "committed", "end", "lag", "owner"]
    show_table(session, titles, rows, document=document, empty="the group has committed nothing yet")
