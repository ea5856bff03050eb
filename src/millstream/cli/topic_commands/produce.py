"""`millstream produce`: sends lines, or the rows of a columnar file, to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from millstream.cli.failures import NOT_FOR_ALL
from millstream.cli.output import show_done
from millstream.cli.session import Session, SharedGroup, TopicName, command, complete_topics
from millstream.errors import AlreadyExists, InvalidInput, NotFound

if TYPE_CHECKING:
    from millstream.cli.topic_commands.importing import Summary
    from millstream.log import Broker

Format = Literal["lines", "json", "csv", "parquet", "arrow"]
FORMATS_BY_ENDING: dict[str, Format] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


def register(app: typer.Typer) -> None:
    command(app, "produce")(produce)


def produce(
    session: Session,
    topic: TopicName,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default, or -: stdin.")] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            help="lines: one value per line, decoded by the topic's codec if it has a schema; json: lines of JSON, "
            "whatever the codec; csv (with a header line), parquet, arrow: by columns. Default: from the file's "
            "extension."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column, or field of the JSON object, that is the key.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Lines are key, this text, value: ':' for key:value.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column or field that is the record's time; default: now.")
    ] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", help="Send all records to this partition.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header for every record; repeatable.")
    ] = None,
    null_value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A value that is exactly this text is a tombstone.")
    ] = None,
    acks: Annotated[
        Literal["0", "1", "all"], typer.Option(help="When a record counts as stored; all: once it is synced to disk.")
    ] = "all",
    partition_by: Annotated[
        Literal["key", "round_robin", "sticky"], typer.Option(help="How a partition is chosen.")
    ] = "key",
    on_error: Annotated[
        Literal["dead-letters", "stop"], typer.Option(help="What to do with a line that cannot be decoded.")
    ] = "dead-letters",
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Where such lines go; default: TOPIC.dead.", autocompletion=complete_topics),
    ] = None,
    max_expansion: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Stop reading a Parquet or Arrow file that unpacks to over 1 GiB and over N times its size.",
        ),
    ] = 1000,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    partitions: Annotated[int | None, typer.Option(help="With --create: the number of partitions.")] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="With --create: its columns; default: those of a columnar file."),
    ] = None,
    shared_group: SharedGroup = None,
) -> None:
    """Store records from stdin or a file.

    A line ends at \n or \r\n. Empty lines between JSON values are skipped. Lines that cannot be decoded go to the dead
    letters with their line number and the reason; the exit code is then 6. With --on-error stop the first such line
    ends the import with exit code 2; the lines before it are stored.

    \b
    Example:
      cat events.jsonl | millstream produce scores --key team
      millstream produce scores history.parquet --create --key team --timestamp at
      echo 'x:5' | millstream produce counts --key-separator ':'
    """
    from millstream.cli.topic_commands.importing import Import, Options

    if not create and (partitions is not None or schema is not None):
        raise InvalidInput("--partitions and --schema are for a new topic", next_step="add --create")
    path = None if file is None or str(file) == "-" else file
    chosen = format or (FORMATS_BY_ENDING.get(path.suffix.lower(), "lines") if path else "lines")
    options = Options(
        format=chosen,
        key=key,
        key_separator=key_separator,
        timestamp=timestamp,
        partition=partition,
        headers=_headers(header or []),
        null_value=null_value,
        acks="all" if acks == "all" else int(acks),
        partition_by=partition_by,
        stop_on_error=on_error == "stop",
        dead_letters=dead_letters or f"{topic}.dead",
        max_expansion=max_expansion,
    )
    with _opened(path) as stream, session.log(create=create, shared_group=shared_group) as log:
        if create and topic not in log.topics():
            _create(log, topic, chosen, path, partitions, schema)
        job = Import(log, topic, options, stream, path)
        try:
            job.run()
        except BaseException:
            if job.summary.stored or job.summary.dead_letters:  # what was stored stays, however it ended
                _report(session, job.summary)
            raise
        _report(session, job.summary)
    if job.summary.dead_letters:
        raise typer.Exit(NOT_FOR_ALL)


def _report(session: Session, summary: Summary) -> None:
    show_done(session, summary.text(), document=summary.document())


def _headers(given: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidInput(f"'{text}' is not a header", next_step="write name=value")
        pairs.append((name, value))
    return pairs


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    if path.is_dir():
        raise InvalidInput(f"'{path}' is a folder", next_step="name a file in it")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"there is no file '{path}'", next_step="check the path") from None
    with file:
        yield file


def _create(
    log: Broker, topic: str, format: Format, path: Path | None, partitions: int | None, schema: str | None
) -> None:
    from millstream.cli.topic_commands.columnar import schema_of

    settings: dict[str, Any] = {"partitions": partitions or 1, "schema": schema}
    if schema is None and format in ("csv", "parquet", "arrow"):
        if path is None:
            raise InvalidInput(
                f"a topic created for {format} from stdin needs a schema", next_step='give --schema "user string, …"'
            )
        settings["schema"] = schema_of(path, format)
    with suppress(AlreadyExists):  # another process was faster
        log.create_topic(topic, **settings)
