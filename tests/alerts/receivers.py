"""Real servers that receive alerts: SMTP, and HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.smtp import SMTP


class Mails:
    """An SMTP server that keeps what it gets."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuses = False

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refuses:
            return "451 try again later"
        self.mails.append(cast("EmailMessage", message_from_bytes(envelope.content, policy=policy.default)))
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[tuple[Mails, int]]:
    mails = Mails()
    loop = asyncio.new_event_loop()
    serving = loop.create_server(lambda: SMTP(mails, hostname="localhost", loop=loop), "127.0.0.1", 0)
    server = loop.run_until_complete(serving)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield mails, server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()


class Requests:
    """What an HTTP server received, and how it answers."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.status = 200

    @property
    def documents(self) -> list[Any]:
        return [json.loads(body) for _, body in self.received]


@contextmanager
def http_server() -> Iterator[tuple[Requests, str]]:
    requests = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if requests.status < 300:
                requests.received.append((dict(self.headers.items()), body))
            self.send_response(requests.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield requests, f"http://127.0.0.1:{server.server_address[1]}/hook?token=hunter2"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
