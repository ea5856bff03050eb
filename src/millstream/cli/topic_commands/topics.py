"""`millstream topics`: the topics of a log and their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.output import ask, count_text, show_details, show_done, show_table, size_text
from millstream.cli.session import Session, SharedGroup, TopicName, Yes, complete_topics, subcommands
from millstream.cli.topic_commands.moving import move, on_kafka
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError
from millstream.terminal import write_line

if TYPE_CHECKING:
    from millstream.log import TopicInfo

SETTINGS: dict[str, Any] = {
    "partitions": Annotated[int | None, typer.Option(help="Number of partitions; it can only be raised later.")],
    "schema": Annotated[
        str | None, typer.Option(metavar="DDL", help='Columns: "user string, score int, at timestamp".')
    ],
    "codec": Annotated[
        str | None, typer.Option(metavar="NAME", help="How bytes are decoded: json, avro, csv, string or bytes.")
    ],
    "retention": Annotated[str | None, typer.Option(metavar="DURATION", help='How long to keep records: "7 days".')],
    "retention_bytes": Annotated[
        str | None, typer.Option(metavar="SIZE", help="How much to keep of each partition: 1GB.")
    ],
    "retention_archive": Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Where to move old segments instead of deleting them: a folder, s3://BUCKET/…."
        ),
    ],
    "segment_bytes": Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size at which a new segment is started: 64MiB.")
    ],
    "compaction": Annotated[
        bool | None, typer.Option("--compaction/--no-compaction", help="Keep only the newest record of each key.")
    ],
    "tombstone_retention": Annotated[
        str | None, typer.Option(metavar="DURATION", help='How long to keep tombstones: "1 day".')
    ],
    "replication_factor": Annotated[int | None, typer.Option(help="On Kafka: on how many brokers each partition is.")],
    "min_insync_replicas": Annotated[
        int | None, typer.Option(help="On Kafka: how many of them must have a record before it is acknowledged.")
    ],
}
CAN_BE_NONE = ("schema", "codec", "retention", "retention_bytes", "retention_archive")


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting of a topic to a command, which receives those that were given as `settings`."""

    @wraps(function)
    def run(session: Session, **given: Any) -> None:
        named = {name: value for name in SETTINGS if (value := given.pop(name)) is not None}
        removed = {name: None for name in CAN_BE_NONE if named.get(name) == "none"}
        function(session, settings=named | removed, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, keyword, annotation=kind, default=None) for name, kind in SETTINGS.items()]
    signature = inspect.signature(function, eval_str=True)
    own = [each.replace(kind=keyword) for each in list(signature.parameters.values())[1:]]
    at = [each.name for each in own].index("settings")
    session = next(iter(signature.parameters.values()))
    run.__signature__ = signature.replace(parameters=[session, *own[:at], *options, *own[at + 1 :]])  # type: ignore[attr-defined]
    return run


def register(app: typer.Typer) -> None:
    subcommands(
        app,
        "topics",
        "List, create, describe, change, alter, delete, clean, repair and move topics.",
        list_topics,
        create,
        describe,
        change,
        alter,
        delete,
        clean,
        repair,
        move,
    )


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
            for name in sorted(read.keys() - log.topics()):  # names without a topic of that name
                rows.append((name, None, None, None, None))
                document.append({"name": name, "switched_to": read[name]})
    titles = ["topic", "partitions", "records", "size", "schema"]
    if read:
        titles.insert(1, "readers read")
        rows = [(name, read.get(str(name)), *rest) for name, *rest in rows]
    show_table(session, titles, rows, document=document, empty=session.nothing("topics"))


@with_settings
def create(
    session: Session,
    topic: TopicName,
    settings: dict[str, Any],
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    shared_group: SharedGroup = None,
) -> None:
    """Create a topic.

    \b
    Example:
      millstream topics create scores --partitions 4 --schema "user string, score int" --retention "7 days"
    """
    with session.log(create=True, shared_group=shared_group) as log:
        try:
            info, made = log.create_topic(topic, **settings), True
        except AlreadyExists:
            if not if_not_exists:
                raise
            info, made = log.describe_topic(topic), False
    message = f"created topic '{topic}' with {count_text(len(info.partitions), 'partition')}"
    show_done(
        session, message if made else f"topic '{topic}' already exists", document={**_details(info), "created": made}
    )


def describe(session: Session, topic: TopicName) -> None:
    """Show the settings and partitions of a topic.

    \b
    Example:
      millstream topics describe scores --json | jq .settings.retention
    """
    with session.log() as log:
        _show(session, log.describe_topic(topic))


@with_settings
def change(
    session: Session,
    topic: TopicName,
    settings: dict[str, Any],
) -> None:
    """Change settings of a topic; the others stay.

    The word none removes a setting: --retention none, --retention-bytes none, --codec none, and, as long as the topic
    is empty, --schema none.

    \b
    Example:
      millstream topics change scores --retention none --partitions 8
    """
    if not settings:
        raise InvalidInput("there is nothing to change", next_step="name a setting: millstream topics change --help")
    with session.log() as log:
        _show(session, log.change_topic(topic, **settings))


def alter(
    session: Session,
    topic: TopicName,
    assignments: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name; may be repeated.")
    ],
) -> None:
    """Change settings of a topic on Kafka by Kafka's own names.

    The embedded log has no such settings: it stays on one machine.

    \b
    Example:
      millstream topics alter scores --set min.insync.replicas=2 --set compression.type=zstd
    """
    settings = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise InvalidInput(f"'{assignment}' is not NAME=VALUE", next_step="for example --set min.insync.replicas=2")
        settings[name] = value
    with on_kafka(session, "these are settings of Kafka's brokers") as log:
        _show(session, log.alter_topic(topic, settings))


def delete(session: Session, topic: TopicName, yes: Yes = False) -> None:
    """Delete a topic and all its records. Prompts on a terminal; elsewhere it needs --yes.

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
        names = [topic] if topic else log.topics() if not session.kafka() else []  # Kafka is rejected below
        before = {name: log.describe_topic(name).size_bytes for name in names}
        log.clean(topic)
        after = {name: log.describe_topic(name).size_bytes for name in names}
    rows = [(name, size_text(before[name]), size_text(after[name])) for name in names]
    document = [{"name": n, "size_bytes_before": before[n], "size_bytes_after": after[n]} for n in names]
    show_table(
        session, ["topic", "size before", "size after"], rows, document=document, empty=session.nothing("topics")
    )


def repair(session: Session, topic: TopicName, yes: Yes = False) -> None:
    """Keep the intact records of a damaged topic, and report what is lost.

    Nobody else may use the topic meanwhile. The damaged files are kept next to the repaired ones, as .damaged. Prompts
    on a terminal; elsewhere it needs --yes. Kafka's brokers repair their topics themselves.

    \b
    Example:
      millstream topics repair scores --yes
    """
    with session.log() as log:
        log.topic(topic)
        if not session.kafka():  # Kafka is rejected anyway: no prompt needed
            ask(f"Repair topic '{topic}'? Damaged records are dropped.", yes=yes)
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
    """Empty unless something was switched, as in most logs."""
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
