"""`millstream listen`: receives events over other protocols and stores them in topics."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from millstream.cli.bridge_commands import listen_brokers, listen_queues, listen_sockets
from millstream.cli.bridge_commands.stopping import on_stop
from millstream.cli.failures import warn
from millstream.cli.output import show_note
from millstream.cli.session import AllowedHosts, Session, complete_topics, subcommands
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    import uvicorn

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

ServerCertificate = Annotated[Path | None, typer.Option(metavar="FILE", help="The server's certificate, for TLS.")]
ServerKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")]


def register(app: typer.Typer) -> None:
    help = "Receive events over other protocols and store them in topics."
    others = (*listen_queues.COMMANDS, *listen_brokers.COMMANDS, *listen_sockets.COMMANDS)
    subcommands(app, "listen", help, http, gateway, flight, mqtt, files, *others)


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
    tls_cert: ServerCertificate = None,
    tls_key: ServerKey = None,
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
    from millstream.bridges.http import listener as http_listener
    from millstream.bridges.http.bodies import EventFormat
    from millstream.bridges.landing import Landing
    from millstream.bridges.reports import reported
    from millstream.records import size_bytes
    from millstream.secrets import Secret
    from millstream.serving.access import Access, ListenAddress, read_token
    from millstream.serving.http import listening, server
    from millstream.webhooks.signatures import Verifier

    http_listener.check_installed()
    _check_together(tls_cert, tls_key)
    from millstream.bridges.http.connection import BridgeConnection

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
        url = _announced(session, host, taken.getsockname()[1], is_local=address.is_local, is_tls=tls_cert is not None)
        running = server(application, BridgeConnection, certificate=tls_cert, key=tls_key)
        landing.on_failure = _stop_of(running)
        on_stop(landing.on_failure)
        show_note(f"listening at {', '.join(f'{url}/{topic}' for topic in topics)} until Ctrl-C")
        http_listener.share_processor()
        try:
            with reported(log, "http", landing):
                running.run(sockets=[taken])
                if landing.failure is not None:
                    raise landing.failure
        finally:
            show_note(landing.counts.summary())


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
    callbacks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Let clients register callback URLs; they are kept in this private file."),
    ] = None,
    callback_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="The only hosts of callback URLs; repeatable.")
    ] = None,
    retry_for: Annotated[
        str, typer.Option(metavar="'1 day'", help="How long a record is tried before it becomes a dead letter.")
    ] = "1 day",
    tls_cert: ServerCertificate = None,
    tls_key: ServerKey = None,
) -> None:
    """Serve topics over HTTP until Ctrl-C, for programs in any language: produce, read, follow, and groups.

    GET / lists the routes. Needs: pip install 'millstream[bridges]'

    \b
    Example:
      millstream listen gateway clicks
      curl -d '[{"key": "ann", "value": {"n": 1}}]' http://127.0.0.1:8082/v1/topics/clicks/records
      curl -N http://127.0.0.1:8082/v1/topics/clicks/events?position=earliest
    """
    from millstream.bridges.http import listener as http_listener
    from millstream.serving.access import Access, ListenAddress, read_token
    from millstream.serving.http import listening, server

    http_listener.check_installed()
    _check_together(tls_cert, tls_key)
    from millstream.bridges.http.callbacks import Callbacks
    from millstream.bridges.http.connection import BridgeConnection
    from millstream.bridges.http.gateway import BODY_BYTES_MAX
    from millstream.bridges.http.gateway import gateway as opened
    from millstream.bridges.reports import Served, reported, unknown
    from millstream.bridges.sockets.running import bridge_name

    address = ListenAddress.of(host, port)
    access = Access.at(address, allowed_hosts=allowed_host or [], token=read_token(token_file, os.environ))
    served = Served(bridge_name("gateway", f"{host}:{port}"), topics or ())
    with ExitStack() as opening:
        log = opening.enter_context(session.log())
        registered, behind = None, unknown
        if callbacks is not None:
            made = Callbacks(log, callbacks, hosts=callback_host or [], retry_for=retry_for, counts=served.counts)
            behind, registered = made.behind, opening.enter_context(closing(made))
        application = opening.enter_context(
            opened(log, access, topics or [], read_only=read_only, callbacks=registered, counts=served.counts)
        )
        taken = opening.enter_context(listening(address))
        url = _announced(session, host, taken.getsockname()[1], is_local=address.is_local, is_tls=tls_cert is not None)
        running = server(
            application, BridgeConnection, certificate=tls_cert, key=tls_key, message_bytes_max=BODY_BYTES_MAX
        )
        on_stop(_stop_of(running))
        show_note(f"the gateway is at {url}/ until Ctrl-C")
        with reported(log, "gateway", served, behind):
            running.run(sockets=[taken])


def flight(
    session: Session,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8815,
    token_file: TokenFile = None,
    tls_cert: ServerCertificate = None,
    tls_key: ServerKey = None,
) -> None:
    """Serve a log to other machines over Arrow Flight until Ctrl-C: ms.connect("flight://HOST:PORT").

    Clients send the token that is in their MILLSTREAM_TOKEN.

    \b
    Example:
      millstream listen flight --host 192.0.2.7 --token-file token --tls-cert cert.pem --tls-key key.pem
      MILLSTREAM_TOKEN=$(cat token) millstream topics list --log flight+tls://192.0.2.7:8815?ca=ca.pem
    """
    from millstream.bridges.flight_server import FlightServer
    from millstream.bridges.reports import reported
    from millstream.log import open_embedded
    from millstream.serving.access import ListenAddress, read_token, require_token

    address = ListenAddress.of(host, port)
    token = read_token(token_file, os.environ)
    require_token(address, token)
    _check_together(tls_cert, tls_key)
    tls = None if tls_cert is None or tls_key is None else (tls_cert.read_bytes(), tls_key.read_bytes())
    shown = f"[{address.ip}]" if ":" in str(address.ip) else str(address.ip)
    with open_embedded(session.existing()) as log:
        location = f"grpc{'+tls' if tls else '+tcp'}://{shown}:{port}"
        with FlightServer(log, location, token=token, tls=tls) as server:
            if not address.is_local and tls is None:
                warn("without --tls-cert, anyone on the network path can read the token and the records", as_json=False)
            on_stop(server.stop)
            show_note(f"the log is at flight{'+tls' if tls else ''}://{host}:{server.port} until Ctrl-C")
            with reported(log, "flight", server.served):
                server.wait_until_stopped()
    if server.has_abandoned_calls:
        os._exit(0)


def mqtt(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    *,
    at: Annotated[str, typer.Option(metavar="ADDRESS", help="The broker: mqtt://USER@HOST:1883, or mqtts:// for TLS.")],
    subscribe: Annotated[
        list[str], typer.Option(metavar="FILTER", help="Which messages, such as devices/+/readings; repeatable.")
    ],
    client_id: Annotated[str, typer.Option(help="Names the session that the broker keeps for this bridge.")],
    qos: Annotated[int, typer.Option(min=0, max=2, help="0 may lose messages.")] = 1,
    protocol: Annotated[Literal["5", "3"], typer.Option(help="The version of MQTT; 3 is 3.1.1.")] = "5",
    id_property: Annotated[
        str | None, typer.Option(metavar="NAME", help="The user property with the id of a message, in MQTT 5.")
    ] = None,
    tls: listen_queues.ClientTls,
    will_topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Where the broker publishes 'offline', retained, if this bridge crashes."),
    ] = None,
    max_message: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest message; a larger one is a dead letter.")
    ] = "1 MiB",
    keep_ids: KeepIds = "1 day",
) -> None:
    """Receive messages of an MQTT broker until Ctrl-C: each is acknowledged when it is safe on disk.

    The key of a record is the MQTT topic. The password is in MILLSTREAM_MQTT_PASSWORD.

    \b
    Example:
      millstream listen mqtt readings --at mqtt://127.0.0.1 --subscribe 'devices/#' --client-id cellar
    """
    from millstream.bridges.landing import Landing
    from millstream.bridges.mqtt.bridge import MqttBridge, MqttSource
    from millstream.bridges.mqtt.client import PASSWORD_VARIABLE, MqttBroker, Will
    from millstream.bridges.sockets.running import bridge_name
    from millstream.records import size_bytes

    broker = MqttBroker(
        at,
        int(protocol),
        listen_queues.password_in(PASSWORD_VARIABLE),
        tls.ca_file,
        tls.certificate,
        None if will_topic is None else Will(will_topic, "offline"),
    )
    source = MqttSource(broker, subscribe, client_id, qos, id_property, size_bytes(max_message))
    name = bridge_name("mqtt", f"{at} {client_id}")
    with session.log() as log, Landing(log, name, [topic], keep_ids=keep_ids) as landing:
        what = f"{', '.join(subscribe)} for topic '{topic}'"
        listen_queues.run_until_stopped(log, "mqtt", MqttBridge(source, landing, topic), landing, what)


def files(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    patterns: Annotated[
        list[str], typer.Argument(metavar="PATTERN…", help="Files, folders, or patterns such as 'logs/app.log*'.")
    ],
    once: Annotated[bool, typer.Option("--once", help="End when all lines that are there are stored.")] = False,
    max_line: Annotated[str, typer.Option(metavar="SIZE", help="The longest line.")] = "1 MiB",
    marker: Annotated[
        str | None,
        typer.Option(metavar="ENDING", help="Read a file when there is one with this ending as well, such as '.done'."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --marker: move files there when they are stored.")
    ] = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Read compressed files and archives too: .gz, .bz2, .xz, .zst, .tar, .zip.")
    ] = False,
    max_unpacked: Annotated[
        str, typer.Option(metavar="SIZE", help="With --unpack: how much may be in one file.")
    ] = "1 GiB",
) -> None:
    """Follow files that grow until Ctrl-C, as tail -F does: every line is a record, and stored exactly once.

    Rotated files are followed if a pattern covers their new names. The positions are stored with the lines, so a
    restart continues where it was. A bridge is known by its topic and patterns.

    \b
    Example:
      millstream listen files logs '/var/log/app.log*'
    """
    from millstream.bridges.growing_files.following import FolderFollower
    from millstream.bridges.growing_files.positioned import PositionedLanding
    from millstream.bridges.reports import reported
    from millstream.bridges.sockets.running import bridge_name
    from millstream.records import size_bytes

    name = bridge_name("files", " ".join(sorted(str(Path(pattern).absolute()) for pattern in patterns)))
    with session.log() as log, PositionedLanding(log, name, topic) as landing:
        follower = FolderFollower(
            landing,
            patterns,
            bytes_max=size_bytes(max_line),
            marker=marker,
            archive=archive,
            unpack=unpack,
            unpacked_bytes_max=size_bytes(max_unpacked),
        )
        on_stop(follower.stop)
        show_note(f"following {', '.join(patterns)} for topic '{topic}' until Ctrl-C")
        try:
            with reported(log, "files", landing, follower.behind):
                follower.run(once=once)
        finally:
            show_note(landing.counts.summary())


def _stop_of(running: uvicorn.Server) -> Callable[[], None]:
    """uvicorn handles signals itself while it runs, and then passes them on; this is for those before and after."""

    def stop() -> None:
        running.should_exit = True

    return stop


def _check_together(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise InvalidInput("a certificate and its key belong together", next_step="give --tls-cert and --tls-key")


def _announced(session: Session, host: str, port: int, *, is_local: bool, is_tls: bool) -> str:
    if not is_local and not is_tls:
        warn(
            "this is plain HTTP: anyone on the network path can read what is sent; give --tls-cert and --tls-key, or "
            "put a TLS proxy in front of it",
            as_json=session.json,
        )
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{shown}:{port}"
