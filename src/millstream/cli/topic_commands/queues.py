"""`millstream queues`: records of a topic as single messages, each acknowledged individually."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from millstream.cli.failures import NOT_FOR_ALL
from millstream.cli.output import show_details, show_done, show_table
from millstream.cli.session import QueueName, Session, complete_topics, subcommands
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.log import QueueInfo


def register(app: typer.Typer) -> None:
    subcommands(
        app,
        "queues",
        "List, create, describe and delete queues; receive their messages.",
        list_queues,
        create,
        describe,
        delete,
        receive,
    )


def list_queues(session: Session) -> None:
    """List the queues.

    \b
    Example:
      millstream queues list --json | jq '.[] | select(.dead > 0).name'
    """
    infos: list[QueueInfo] = []
    if not session.missing_folder():
        with session.log() as log:
            infos = log.queues()
    rows = [(i.name, i.topic, i.waiting, i.in_flight, i.acknowledged, i.dead, i.consumers) for i in infos]
    titles = ["queue", "topic", "waiting", "in flight", "acknowledged", "dead", "consumers"]
    show_table(session, titles, rows, document=[_document(i) for i in infos], empty=session.nothing("queues"))


def create(
    session: Session,
    name: QueueName,
    topic: Annotated[str, typer.Option(help="The topic whose records it delivers.", autocompletion=complete_topics)],
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a consumer may take; default: 30 seconds.")
    ] = None,
    max_tries: Annotated[int | None, typer.Option(help="How often a message is tried; default: 5.")] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="The topic for messages that failed every try; default: NAME.dead."),
    ] = None,
    max_in_flight: Annotated[int | None, typer.Option(help="How many may be in flight; default: 10000.")] = None,
    start: Annotated[
        Literal["earliest", "latest"] | None, typer.Option("--from", help="Where the queue starts; default: earliest.")
    ] = None,
) -> None:
    """Create a queue on a topic.

    \b
    Example:
      millstream queues create mails --topic signups --timeout "5 minutes" --max-tries 3
    """
    given = {
        "timeout": timeout,
        "max_tries": max_tries,
        "dead_letters": dead_letters,
        "max_in_flight": max_in_flight,
        "start": start,
    }
    with session.log() as log:
        info = log.create_queue(name, topic, **{key: value for key, value in given.items() if value is not None})
    message = f"created queue '{name}' on topic '{topic}'; its dead letters go to '{info.settings.dead_letters}'"
    show_done(session, message, document=_document(info))


def describe(session: Session, name: QueueName) -> None:
    """Show a queue's settings, and how many messages are waiting, in flight, done or dead.

    \b
    Example:
      millstream queues describe mails --json | jq .waiting
    """
    with session.log() as log:
        document = _document(log.describe_queue(name))
    settings = document["settings"]
    plain = {key: value for key, value in document.items() if key != "settings"}
    show_details(session, plain | settings, document=document)


def delete(session: Session, name: QueueName) -> None:
    """Delete a queue; the topic and its dead letters stay.

    \b
    Example:
      millstream queues delete mails
    """
    with session.log() as log:
        log.delete_queue(name)
    show_done(session, f"deleted queue '{name}'", document={"deleted": name})


def receive(
    session: Session,
    name: QueueName,
    max_messages: Annotated[
        int, typer.Option("--max", min=0, help="Stop after this many messages; 0: when none are left.")
    ] = 1,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long to wait for a message; on Kafka, at least a few seconds."
        ),
    ] = 0.0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep waiting for messages.")] = False,
    acknowledge: Annotated[bool, typer.Option("--ack", help="Acknowledge messages after they were printed.")] = False,
    run: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="A shell command to run for each message.")
    ] = None,
) -> None:
    """Receive messages of a queue.

    With --exec, the command gets the value on stdin; exit code 0 acknowledges the message, any other rejects it, and it
    is redelivered until the queue's tries are used up. The command sees MILLSTREAM_TOPIC, MILLSTREAM_PARTITION,
    MILLSTREAM_OFFSET, MILLSTREAM_KEY and MILLSTREAM_TRIES, and holds the message while it runs; on Kafka, no longer
    than the queue's timeout.

    With --ack, messages are printed and acknowledged. With neither, they are only shown, and go back to the queue. That
    counts as a try, and after its last try a message goes to the dead letters.

    \b
    Example:
      millstream queues receive mails --exec './send-mail.sh' --follow
      millstream queues receive mails --max 100 --wait 5 --ack --json
    """
    from millstream.cli.topic_commands.receiving import Receiver

    if run is not None and acknowledge:
        raise InvalidInput("--exec acknowledges by itself", next_step="leave out --ack")
    with session.log() as log, log.queue(name) as queue:
        receiver = Receiver(session, queue, log.topic(queue.topic).settings.schema, wait)
        limit = None if follow or max_messages == 0 else max_messages
        if run is None:
            receiver.print(limit, follow=follow, acknowledge=acknowledge)
            return
        done, refused = receiver.execute(run, limit, follow=follow)
    message = f"acknowledged {done:,}, rejected {refused:,}"
    show_done(session, message, document={"queue": name, "acknowledged": done, "refused": refused})
    if refused:
        raise typer.Exit(NOT_FOR_ALL)


def _document(info: QueueInfo) -> dict[str, Any]:
    import json

    counts = ("waiting", "in_flight", "acknowledged", "dead", "lost", "consumers")
    return {
        "name": info.name,
        "topic": info.topic,
        **{count: getattr(info, count) for count in counts},
        "settings": json.loads(info.settings.to_json()),
    }
