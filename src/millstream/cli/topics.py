"""`millstream topics`: what topics there are, and how they keep their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.moving import move
from millstream.cli.output import ask, count_text, show_details, show_done, show_table, size_text
from millstream.cli.session import Session, SharedGroup, TopicName, Yes, command, complete_topics, subcommands
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError
from millstream.terminal import write_line

if TYPE_CHECKING:
    from millstream.log import TopicInfo

Partitions = Annotated[int | None, typer.Option(help="How many partitions; they can only become more.")]
SchemaText = Annotated[str | None, typer.Option(metavar="DDL", help='Columns: "user string, score int, at timestamp".')]
CodecName = Annotated[
    str | None, typer.Option(metavar="NAME", help="How bytes become rows: json, avro, csv, string or bytes.")
]
Retention = Annotated[str | None, typer.Option(metavar="DURATION", help='Keep records so long: "7 days".')]
RetentionBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Keep so much of each partition: 1GB.")]
SegmentBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Begin a new file after so much: 64MiB.")]
Compaction = Annotated[bool | None, typer.Option("--compaction/--no-compaction", help="Keep the newest of each key.")]
TombstoneRetention = Annotated[
    str | None, typer.Option(metavar="DURATION", help='Keep the deletion of a key so long: "1 day".')
]
CAN_BE_NONE = ("schema", "codec", "retention", "retention_bytes")


def register(app: typer.Typer) -> None:
    topics = subcommands(app, "topics", "List, create, describe, change, delete, clean, repair and move topics.")
    command(topics, "list")(list_topics)
    command(topics, "create")(create)
    command(topics, "describe")(describe)
    command(topics, "change")(change)
    command(topics, "delete")(delete)
    command(topics, "clean")(clean)
    command(topics, "repair")(repair)
    command(topics, "move")(move)


def list_topics(session: Session) -> None:
    """List the topics.

    \b
    Example:
      millstream topics list --json | jq -r '.[].name'
    """
    rows: list[tuple[str | int | None, ...]] = []
    document = []
    read: dict[str, str] = {}
    if not session.missing_folder():
        with session.log() as log:
            for name in log.topics():
                try:
                    info = log.describe_topic(name)
                except MillstreamError as error:  # one damaged topic must not hide the others
                    rows.append(
                        (name, None, None, None, f"{error.what} ({error.where})" if error.where else error.what)
                    )
                    document.append({"name": name, "error": error.what, "where": error.where})
                    continue
                schema = info.settings.schema
                size = size_text(info.size_bytes)
                rows.append((name, len(info.partitions), info.records_max, size, schema.ddl if schema else None))
                document.append(_summary(info))
            read = {name: switch.topic for name, switch in log.switches.now().items() if switch.topic != name}
            for name in sorted(read.keys() - log.topics()):  # names without a topic of their own
                rows.append((name, None, None, None, None))
                document.append({"name": name, "switched_to": read[name]})
    titles = ["topic", "partitions", "records", "size", "schema"]
    if read:
        titles.insert(1, "readers read")
        rows = [(name, read.get(str(name)), *rest) for name, *rest in rows]
    show_table(session, titles, rows, document=document, empty=session.nothing("topics"))


def create(
    session: Session,
    topic: TopicName,
    partitions: Partitions = None,
    schema: SchemaText = None,
    codec: CodecName = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    segment_bytes: SegmentBytes = None,
    compaction: Compaction = None,
    tombstone_retention: TombstoneRetention = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Fine if it is there already.")] = False,
    shared_group: SharedGroup = None,
) -> None:
    """Create a topic.

    \b
    Example:
      millstream topics create scores --partitions 4 --schema "user string, score int" --retention "7 days"
    """
    settings = _settings(
        partitions=partitions,
        schema=schema,
        codec=codec,
        retention=retention,
        retention_bytes=retention_bytes,
        segment_bytes=segment_bytes,
        compaction=compaction,
        tombstone_retention=tombstone_retention,
    )
    with session.log(create=True, shared_group=shared_group) as log:
        try:
            info, made = log.create_topic(topic, **settings), True
        except AlreadyExists:
            if not if_not_exists:
                raise
            info, made = log.describe_topic(topic), False
    message = f"created topic '{topic}' with {count_text(len(info.partitions), 'partition')}"
    show_done(
        session, message if made else f"topic '{topic}' exists already", document={**_details(info), "created": made}
    )


def describe(session: Session, topic: TopicName) -> None:
    """Show the settings and partitions of a topic.

    \b
    Example:
      millstream topics describe scores --json | jq .settings.retention
    """
    with session.log() as log:
        _show(session, log.describe_topic(topic))


def change(
    session: Session,
    topic: TopicName,
    partitions: Partitions = None,
    schema: SchemaText = None,
    codec: CodecName = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    segment_bytes: SegmentBytes = None,
    compaction: Compaction = None,
    tombstone_retention: TombstoneRetention = None,
) -> None:
    """Change settings of a topic; those not named stay.

    The word none takes a setting away: --retention none, --retention-bytes none, --codec none, and, as long as
    the topic is empty, --schema none.

    \b
    Example:
      millstream topics change scores --retention none --partitions 8
    """
    settings = _settings(
        partitions=partitions,
        schema=schema,
        codec=codec,
        retention=retention,
        retention_bytes=retention_bytes,
        segment_bytes=segment_bytes,
        compaction=compaction,
        tombstone_retention=tombstone_retention,
    )
    if not settings:
        raise InvalidInput("there is nothing to change", next_step="name a setting: millstream topics change --help")
    with session.log() as log:
        _show(session, log.change_topic(topic, **settings))


def delete(session: Session, topic: TopicName, yes: Yes = False) -> None:
    """Delete a topic and all its records. Asks on a terminal; elsewhere it wants --yes.

    \b
    Example:
      millstream topics delete scores --yes
    """
    with session.log() as log:
        log.topic(topic)
        ask(f"Delete topic '{topic}' and all its records?", yes=yes)
        log.delete_topic(topic)
    show_done(session, f"deleted topic '{topic}'", document={"deleted": topic})


def clean(
    session: Session,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)] = None,
) -> None:
    """Apply retention and compaction now, to one topic or to all.

    Every process that has the log open does this in the background, so it is rarely needed. Kafka's brokers do it
    themselves.

    \b
    Example:
      millstream topics clean scores
    """
    with session.log() as log:
        names = [topic] if topic else log.topics() if not session.kafka() else []  # which refuses, below
        before = {name: log.describe_topic(name).size_bytes for name in names}
        log.clean(topic)
        after = {name: log.describe_topic(name).size_bytes for name in names}
    rows = [(name, size_text(before[name]), size_text(after[name])) for name in names]
    document = [{"name": n, "size_bytes_before": before[n], "size_bytes_after": after[n]} for n in names]
    show_table(
        session, ["topic", "size before", "size after"], rows, document=document, empty=session.nothing("topics")
    )


def repair(session: Session, topic: TopicName, yes: Yes = False) -> None:
    """Keep what still checks out of a damaged topic, and tell what is lost.

    Nobody else may use the topic meanwhile. The damaged files are kept beside the repaired ones, with .damaged at
    the end of their names. Asks on a terminal; elsewhere it wants --yes. Kafka's brokers repair theirs themselves.

    \b
    Example:
      millstream topics repair scores --yes
    """
    with session.log() as log:
        log.topic(topic)
        if not session.kafka():  # which refuses: nobody need be asked
            ask(f"Repair topic '{topic}'? What is damaged is left out from then on.", yes=yes)
        found = log.repair_topic(topic)
    rows = [
        (
            part.partition,
            part.kept_records,
            sum(end - start for start, end in part.lost),
            ", ".join(f"{start} to {end - 1}" for start, end in part.lost) or None,
            ", ".join(path.name for path in part.damaged_files) or None,
        )
        for part in found
    ]
    document = [
        {
            "partition": part.partition,
            "kept_records": part.kept_records,
            "lost": [{"from_offset": start, "to_offset": end} for start, end in part.lost],
            "damaged_files": [str(path) for path in part.damaged_files],
        }
        for part in found
    ]
    titles = ["partition", "kept", "lost", "lost offsets", "damaged files"]
    show_table(session, titles, rows, document=document, empty="there are no partitions")


def _settings(**given: Any) -> dict[str, Any]:
    named = {name: value for name, value in given.items() if value is not None}
    return {name: None if value == "none" and name in CAN_BE_NONE else value for name, value in named.items()}


def _summary(info: TopicInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "partitions": len(info.partitions),
        "records_max": info.records_max,
        "size_bytes": info.size_bytes,
        "schema": info.settings.schema.ddl if info.settings.schema else None,
        **_switched(info),
    }


def _switched(info: TopicInfo) -> dict[str, Any]:
    """Only where something was switched: for most logs this is nothing."""
    to = {"switched_to": info.switched_to} if info.switched_to else {}
    return {**to, **({"serves": list(info.serves)} if info.serves else {})}


def _details(info: TopicInfo) -> dict[str, Any]:
    partitions = [
        {
            "partition": part.number,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "stable_offset": part.stable_offset,
            "size_bytes": part.size_bytes,
            "segments": part.segments,
            "open_transactions": part.open_transactions,
        }
        for part in info.partitions
    ]
    size = {"records_max": info.records_max, "size_bytes": info.size_bytes}
    names = {"name": info.name, **_switched(info)}
    return {**names, "settings": info.settings.to_document(), **size, "partitions": partitions}


def _show(session: Session, info: TopicInfo) -> None:
    document = _details(info)
    if session.json:
        show_details(session, {}, document=document)
        return
    settings = info.settings.to_document()
    sizes = ("retention_bytes", "segment_bytes")
    values = {name: size_text(value) if name in sizes and value else value for name, value in settings.items()}
    values["compaction"] = "on" if settings["compaction"] else "off"
    values["records"], values["size"] = info.records_max, size_text(info.size_bytes)
    switched = {"readers read": info.switched_to} if info.switched_to else {}
    serves = {"read as": ", ".join(info.serves)} if info.serves else {}
    show_details(session, {"topic": info.name, **switched, **serves, **values}, document=document)
    write_line("")
    rows = [
        (p.number, p.start_offset, p.end_offset, p.stable_offset, size_text(p.size_bytes), p.segments)
        for p in info.partitions
    ]
    titles = ["partition", "start", "end", "stable", "size", "segments"]
    show_table(session, titles, rows, document=None, empty="")
