"""`millstream follow` and `millstream rebuild`: copies of a table that follow its topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.bridge_commands.capture import stopping
from millstream.cli.output import count_text, show_done, show_note
from millstream.cli.progress import ImportProgress
from millstream.cli.session import Session, command
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.copies.endpoints import Copy

COPIES = (
    "redis://HOST:PORT/DB#NAME, sqlite:FILE#TABLE, postgresql://HOST/DATABASE#TABLE, files:FOLDER, index:FOLDER, "
    "opensearch:http://HOST:PORT/INDEX, or https://HOST/PATH"
)
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="With changes of a table, or rows by key.")]
Target = Annotated[
    str,
    typer.Argument(metavar="COPY", help=f"{COPIES}."),
]
Text = Annotated[
    list[str] | None, typer.Option("--text", metavar="COLUMN", help="A column whose words are indexed. Repeatable.")
]

UntilCaughtUp = Annotated[
    bool, typer.Option("--until-caught-up", help="Stop when everything that is in the topic now is applied.")
]


def register(app: typer.Typer) -> None:
    command(app, "follow")(follow)
    command(app, "rebuild")(rebuild)


def follow(
    session: Session, topic: TopicName, copy: Target, text: Text = None, until_caught_up: UntilCaughtUp = False
) -> None:
    """Keep a copy of a table up to date: a cache, another database, files, or a search index, until Ctrl-C.

    The topic is that of a captured table, or any whose records have keys: the newest value of a key is its row, and a
    tombstone deletes it. The copy records up to where it is, and the next run continues there.

    \b
    Example:
      millstream follow prices redis://localhost:6379/0#prices
      millstream follow products index:products --text name --text description
    """
    from millstream.copies.following import Follower

    store = copy_of(copy, text).open_store()
    try:
        with session.log() as log, Follower(log, topic, store) as follower, stopping() as stop:
            if until_caught_up:
                follower.catch_up(stop)
            else:
                show_note(f"{store.where} follows '{topic}' until Ctrl-C; the next run continues there")
                follower.run(stop)
            done = f"applied {count_text(follower.applied, 'record')} to {store.where}"
            show_done(session, done, document={"topic": topic, "records": follower.applied})
    finally:
        store.close()


def rebuild(session: Session, topic: TopicName, copy: Target, text: Text = None) -> None:
    """Build a copy from its whole topic again, and switch to it at once.

    Readers see the old copy until the new one is complete. A `millstream follow` may go on: it continues with the new
    copy. The results of a job are rebuilt with `millstream jobs rebuild`.

    \b
    Example:
      millstream rebuild prices redis://localhost:6379/0#prices
    """
    from millstream.copies.following import rebuild as rebuilt

    store = copy_of(copy, text).open_store()
    bar = ImportProgress(f"rebuilding {store.where}", None)
    try:
        with session.log() as log:
            count = rebuilt(log, topic, store, lambda count: bar.show(count, count))
    finally:
        bar.close()
        store.close()
    done = f"rebuilt {store.where} from {count_text(count, 'record')}"
    show_done(session, done, document={"topic": topic, "records": count})


def copy_of(address: str, text: list[str] | None) -> Copy:
    from millstream.copies import endpoints
    from millstream.secrets import Secret

    scheme, _, rest = address.partition(":")
    if scheme in ("redis", "rediss", "unix"):
        url, _, name = address.rpartition("#")
        if url and name:
            return endpoints.redis(url, name)
    elif scheme in ("postgresql", "postgres", "sqlite"):
        place, _, name = (rest if scheme == "sqlite" else address).rpartition("#")
        if place and name:
            return endpoints.RowsOfDatabase((), name, Secret(place))
    elif scheme == "files" and rest:
        return endpoints.key_files(rest)
    elif scheme == "index" and rest:
        if not text:
            raise InvalidInput("a search index needs the columns to search in", next_step="--text COLUMN, repeatable")
        return endpoints.search_index(rest, text=text)
    elif scheme == "opensearch":
        url, _, name = rest.rpartition("/")
        if url and name:
            return endpoints.opensearch(url, name)
    elif scheme in ("http", "https"):
        return endpoints.http_rows(address)
    raise InvalidInput(
        f"'{address}' is not a copy",
        next_step=f"write {COPIES}",
    )
