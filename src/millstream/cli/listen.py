"""`millstream listen`: receives events over other protocols and stores them in topics."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from millstream.cli.failures import warn
from millstream.cli.output import show_note
from millstream.cli.session import AllowedHosts, Session, complete_topics, subcommands

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC…", autocompletion=complete_topics)]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
TokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="A file of mode 600 with the token that clients must send; default: $MILLSTREAM_TOKEN."
    ),
]
KeepIds = Annotated[
    str, typer.Option(metavar="'1 day'", help="How long an id is remembered: a repeated one is not stored again.")
]


def register(app: typer.Typer) -> None:
    subcommands(app, "listen", "Receive events over other protocols and store them in topics.", http, gateway)


def http(
    session: Session,
    topics: Topics,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8081,
    allowed_host: AllowedHosts = None,
    secret_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A file of mode 600 with a secret that signs requests; repeatable, to replace one."
        ),
    ] = None,
    signature: Annotated[
        Literal["standard", "github", "stripe"], typer.Option(help="How requests are signed.")
    ] = "standard",
    token_file: TokenFile = None,
    id_header: Annotated[
        str, typer.Option(metavar="NAME", help="The header with the id of a request.")
    ] = "Idempotency-Key",
    id_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field of an event with its id, instead of the header.")
    ] = None,
    key_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field of an event that becomes the key of its record.")
    ] = None,
    keep_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A header of the request to keep as a header of its records; repeatable."),
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="The largest body.")] = "8 MiB",
    max_event: Annotated[str, typer.Option(metavar="SIZE", help="The largest event.")] = "1 MiB",
    max_waiting: Annotated[
        str, typer.Option(metavar="SIZE", help="How much may wait to be stored; more is answered with 429.")
    ] = "64 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive webhooks until Ctrl-C: POST /TOPIC is answered with 200 when its events are safe on disk.

    A body is one event; a JSON array or lines of JSON (application/x-ndjson) are many. Without a secret or a token,
    only programs on this machine can send. Needs: pip install 'millstream[bridges]'

    \b
    Example:
      millstream listen http orders --secret-file secret
      millstream listen http pushes --secret-file secret --signature github --id-header X-GitHub-Delivery
      curl -d '{"user": "ann"}' -H 'Idempotency-Key: 7' http://127.0.0.1:8081/clicks
    """
    from millstream.bridges import http_listener
    from millstream.bridges.bodies import EventFormat
    from millstream.bridges.landing import Landing
    from millstream.records import size_bytes
    from millstream.secrets import Secret
    from millstream.serving.access import Access, ListenAddress, read_token
    from millstream.serving.http import listening, server
    from millstream.webhooks.signatures import Verifier

    http_listener.check_installed()
    from millstream.bridges.connection import BridgeConnection

    secrets = [Secret(text) for file in secret_file or [] if (text := read_token(file, {})) is not None]
    address = ListenAddress.of(host, port)
    token = read_token(token_file, os.environ)
    rules = http_listener.Rules(
        Access.at(address, allowed_hosts=allowed_host or [], token=token, is_signed=bool(secrets)),
        Verifier(signature, secrets) if secrets else None,
        EventFormat(id_field, key_field, size_bytes(max_event)),
        id_header=id_header.lower(),
        kept_headers=keep_header or [],
        body_bytes_max=size_bytes(max_body),
    )
    waiting_bytes_max = size_bytes(max_waiting)
    with (
        session.log() as log,
        Landing(log, "http", topics, keep_ids=keep_ids) as landing,
        listening(address) as taken,
        http_listener.listener(landing, rules, waiting_bytes_max=waiting_bytes_max) as application,
    ):
        url = _announced(session, host, taken.getsockname()[1], is_local=address.is_local)
        show_note(f"listening at {', '.join(f'{url}/{topic}' for topic in topics)} until Ctrl-C")
        running = server(application, BridgeConnection)

        def stop() -> None:
            running.should_exit = True

        landing.on_failure = stop
        http_listener.share_processor()
        try:
            running.run(sockets=[taken])
        finally:
            show_note(landing.counts.summary())
        if landing.failure is not None:
            raise landing.failure


def gateway(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC…]", help="Only these; default: all topics.", autocompletion=complete_topics),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8082,
    allowed_host: AllowedHosts = None,
    token_file: TokenFile = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Reject new records.")] = False,
) -> None:
    """Serve topics over HTTP until Ctrl-C, for programs in any language: produce, read, follow, and groups.

    GET / lists the routes. Needs: pip install 'millstream[bridges]'

    \b
    Example:
      millstream listen gateway clicks
      curl -d '[{"key": "ann", "value": {"n": 1}}]' http://127.0.0.1:8082/v1/topics/clicks/records
      curl -N http://127.0.0.1:8082/v1/topics/clicks/events?position=earliest
    """
    from millstream.bridges import http_listener
    from millstream.serving.access import Access, ListenAddress, read_token
    from millstream.serving.http import listening, server

    http_listener.check_installed()
    from millstream.bridges.connection import BridgeConnection
    from millstream.bridges.gateway import gateway as opened

    address = ListenAddress.of(host, port)
    access = Access.at(address, allowed_hosts=allowed_host or [], token=read_token(token_file, os.environ))
    with (
        session.log() as log,
        opened(log, access, topics or [], read_only=read_only) as application,
        listening(address) as taken,
    ):
        url = _announced(session, host, taken.getsockname()[1], is_local=address.is_local)
        show_note(f"the gateway is at {url}/ until Ctrl-C")
        server(application, BridgeConnection).run(sockets=[taken])


def _announced(session: Session, host: str, port: int, *, is_local: bool) -> str:
    if not is_local:
        warn(
            "this is plain HTTP: anyone on the network path can read what is sent; put a TLS proxy in front of it",
            as_json=session.json,
        )
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
