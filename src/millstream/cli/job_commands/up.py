"""`millstream up`: runs the supervisor, which keeps submitted jobs running."""

from __future__ import annotations

import getpass
import ssl
import threading
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import warn
from millstream.cli.output import show_document, show_done, show_note, show_text
from millstream.cli.session import AllowedHosts, Session, command
from millstream.errors import AlreadyExists, InvalidInput
from millstream.log.storage.disk import storage_errors


def register(app: typer.Typer) -> None:
    command(app, "up")(up)
    command(app, "console")(console)
    command(app, "bundle")(bundle)


def up(
    session: Session,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    allowed_host: AllowedHosts = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Speak TLS with this PEM file.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of the certificate.")] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Never show the values of this column, or of those like card_*. Repeatable."
        ),
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Send metrics to this OpenTelemetry collector, by OTLP over HTTP.")
    ] = None,
) -> None:
    """Run the supervisor of a log until Ctrl-C. Its jobs go on without it, and it finds them when it starts again.

    Needs: pip install 'millstream[jobs]'

    \b
    Example:
      millstream up
      millstream jobs submit flow.py
      millstream jobs list
    """
    try:
        import cronsim as _cronsim  # noqa: F401
        import prometheus_client as _prometheus_client  # noqa: F401
        import psutil as _psutil  # noqa: F401
        import starlette as _starlette  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            f"the supervisor needs the package {error.name}", next_step="pip install 'millstream[jobs]'"
        ) from error
    from millstream.log import chosen_address, log_folder
    from millstream.serving import http as tables_http
    from millstream.serving.access import Access, ListenAddress
    from millstream.serving.connection import WaitingConnection
    from millstream.supervision.accounts import Accounts, SharedAccess
    from millstream.supervision.alerting import Alerting
    from millstream.supervision.home import Home
    from millstream.supervision.otlp import OtlpMetrics, check_address
    from millstream.supervision.status import Status
    from millstream.supervision.supervisor import Supervisor
    from millstream.web_console.routes import with_console

    tables_http.check_installed()
    _check_certificate(certificate, key)
    if otlp is not None:
        check_address(otlp)
    given = chosen_address(session.address)
    folder = log_folder(given)
    log_address = given if folder is None else str(folder.absolute())  # drivers run in other folders
    if session.kafka() is None:
        with session.log(create=True):  # the supervisor's folder is in that of the log
            pass
    home = Home.of(log_address)
    listen_address = ListenAddress.of(host, port)
    with home.held(), tables_http.listening(listen_address) as taken:
        access = Access.at(listen_address, allowed_hosts=allowed_host or [], token=home.token())
        supervisor = Supervisor(home.folder, log_address, home.jobs, masked=mask or [])
        shown = f"[{host}]" if ":" in host else host
        url = f"{'http' if certificate is None else 'https'}://{shown}:{taken.getsockname()[1]}"
        home.announce(url, certificate)
        if not listen_address.is_local and certificate is None:
            warn(
                "this is plain HTTP: anyone on the network path can read the token; use --certificate and --key",
                as_json=session.json,
            )
        show_note(f"the supervisor is at {url} until Ctrl-C; jobs go on without it. Its token: {home.folder / 'token'}")
        status = Status(supervisor)
        alerting = Alerting(home.folder, status)
        exported = None if otlp is None else OtlpMetrics(otlp, status.running_metrics, alerting.slots.samples)
        looking = threading.Thread(target=supervisor.run, name="millstream-supervisor", daemon=True)
        looking.start()
        alerting.start()
        try:
            shared = SharedAccess(access, Accounts(home.folder))
            owner = getpass.getuser()
            with with_console(
                supervisor, status, log_address, access, shared, home.token(), url, owner, alerting
            ) as door:
                server = tables_http.server(door, WaitingConnection, certificate=certificate, key=key)
                door.ends = lambda: server.should_exit
                show_note(f"open the console: {door.link()}")
                server.run(sockets=[taken])
        finally:
            if exported is not None:
                exported.close()
            alerting.close()
            supervisor.close()
            looking.join(10)


def console(session: Session) -> None:
    """Print a link that opens the supervisor's console in a browser. It works once, within ten minutes.

    \b
    Example:
      millstream console
    """
    from millstream.supervision.client import supervisor

    link = supervisor(session.address).console_link()
    if session.json:
        show_document({"url": link})
    else:
        show_text(link)


def bundle(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The zip to write.")] = Path("millstream-bundle.zip"),
) -> None:
    """Write a zip for support: plans, settings, metrics and logs of the supervisor's jobs.

    It has no records, and secrets in settings are hidden. Logs are what the jobs have printed: look at them first.

    \b
    Example:
      millstream bundle
    """
    from millstream.supervision.client import supervisor

    if file.exists():
        raise AlreadyExists(f"'{file}' exists", next_step="name another file, or delete it")
    content = supervisor(session.address).bundle()
    with storage_errors(file):
        file.write_bytes(content)
    show_done(session, f"wrote {file}", document={"file": str(file), "size_bytes": len(content)})


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Refuses files that TLS cannot start with, before anything is."""
    if certificate is None and key is None:
        return
    if certificate is None:
        raise InvalidInput("--key needs --certificate", next_step="name the PEM file of the certificate")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # also an error of the TLS library
        raise InvalidInput(
            f"the certificate cannot be used: {error}",
            where=str(certificate),
            next_step="name PEM files of a certificate and of its key: --certificate FILE --key FILE",
        ) from error
