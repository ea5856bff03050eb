"""Where alerts are sent to: email, a signed webhook, a chat that takes Slack's JSON, or a command."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import smtplib
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Literal
from urllib.parse import urlsplit

from millstream.alerts.message import Notification
from millstream.errors import AlertNotSent, InvalidInput
from millstream.secrets import Secret
from millstream.user_lines import users_line, what_exists

TIMEOUT_S = 10.0
COMMAND_S_MAX = 30.0
SIGNATURE, TIMESTAMP = "X-Millstream-Signature", "X-Millstream-Timestamp"
ADDRESS = re.compile(r"[^@\s<>,;\"]+@[^@\s<>,;\"]+")
LOCAL = ("localhost", "127.0.0.1", "::1")
SECURITY = ("starttls", "tls", "none")
CHAT_CHARACTERS_MAX = 3000
Security = Literal["starttls", "tls", "none"]


class Target(ABC):
    """Sends notifications. It must be picklable, because plans are."""

    @abstractmethod
    def send(self, notification: Notification) -> None:
        """Sends, or raises AlertNotSent."""


@dataclass(frozen=True)
class Email(Target):
    to: tuple[str, ...]
    host: str
    port: int
    sender: str
    user: str | None = None
    password: Secret | None = None
    security: str = "starttls"

    def __str__(self) -> str:
        return f"email to {', '.join(self.to)}"

    def send(self, notification: Notification) -> None:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = notification.title, self.sender, ", ".join(self.to)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid("millstream")
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(notification.text)
        try:
            kind = smtplib.SMTP_SSL if self.security == "tls" else smtplib.SMTP
            with kind(self.host, self.port, timeout=TIMEOUT_S) as server:
                if self.security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user is not None:
                    server.login(self.user, "" if self.password is None else self.password.reveal())
                refused = server.send_message(mail, self.sender, list(self.to))
        except (OSError, smtplib.SMTPException) as error:
            raise _not_sent(self, f"{type(error).__name__}: {error}", f"check {self.host}:{self.port}") from error
        if refused:
            raise _not_sent(self, f"the server refused {', '.join(refused)}", "check the addresses")


@dataclass(frozen=True)
class Webhook(Target):
    url: Secret
    """Addresses may contain tokens."""
    secret: Secret | None = None

    def __str__(self) -> str:
        return f"webhook at {_host_of(self.url)}"

    def send(self, notification: Notification) -> None:
        body = json.dumps(notification.document(), ensure_ascii=False).encode()
        headers = {}
        if self.secret is not None:
            stamp = str(int(time.time()))
            headers = {TIMESTAMP: stamp, SIGNATURE: signature(self.secret.reveal(), stamp, body)}
        _post(self, self.url.reveal(), body, headers)


@dataclass(frozen=True)
class Slack(Target):
    url: Secret

    def __str__(self) -> str:
        return f"chat at {_host_of(self.url)}"

    def send(self, notification: Notification) -> None:
        text = f"*{notification.title}*\n{notification.text}"[:CHAT_CHARACTERS_MAX]
        _post(self, self.url.reveal(), json.dumps({"text": text}, ensure_ascii=False).encode(), {})


@dataclass(frozen=True)
class Command(Target):
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"command {self.arguments[0]}"

    def send(self, notification: Notification) -> None:
        given = json.dumps(notification.document(), ensure_ascii=False).encode() + b"\n"
        try:
            done = subprocess.run(
                list(self.arguments), input=given, capture_output=True, timeout=COMMAND_S_MAX, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise _not_sent(self, f"{type(error).__name__}: {error}", "run it by hand") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-300:]
            raise _not_sent(self, f"it ended with exit code {done.returncode}: {said}", "run it by hand")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The signature of a webhook's request: over its timestamp and its body, so that neither can be replaced."""
    made = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={made.hexdigest()}"


# ---------------------------------------------------------------- what users call


def email(
    *to: str,
    host: str,
    port: int | None = None,
    sender: str | None = None,
    user: str | None = None,
    password: str | Secret | None = None,
    security: Security = "starttls",
) -> Email:
    """Alerts by email, through an SMTP server. `security` is "starttls", "tls" or "none".

    `sender` is the address that it comes from; default: the first recipient.
    """
    for address in (*to, *([] if sender is None else [sender])):
        if not isinstance(address, str) or not ADDRESS.fullmatch(address):
            raise _refused(f"{address!r} is not an email address", "for example ms.email('ops@example.org', host=…)")
    if not to:
        raise _refused("an email needs a recipient", "for example ms.email('ops@example.org', host=…)")
    if security not in SECURITY:
        raise _refused(f"security={security!r} is unknown", what_exists(str(security), SECURITY, kind="choices"))
    if password is not None and security == "none" and host not in LOCAL:
        raise _refused("the password would be sent in the clear", "use security='starttls' or 'tls'")
    ports = {"starttls": 587, "tls": 465, "none": 25}
    secret = Secret(password) if isinstance(password, str) else password
    return Email(tuple(to), host, port or ports[security], sender or to[0], user, secret, security)


def webhook(url: str, *, secret: str | Secret | None = None) -> Webhook:
    """Alerts as JSON, by a POST to an address. With a `secret`, requests are signed with HMAC-SHA256."""
    return Webhook(_address(url), Secret(secret) if isinstance(secret, str) else secret)


def slack(url: str) -> Slack:
    """Alerts to a chat whose incoming webhooks take Slack's JSON."""
    return Slack(_address(url))


def command(*arguments: str) -> Command:
    """Alerts to a program: it gets JSON on its standard input, and fails by an exit code other than 0."""
    if not arguments or not all(isinstance(each, str) and each and "\0" not in each for each in arguments):
        raise _refused(
            "a command is a program and its arguments", "for example ms.command('/usr/bin/logger', '-t', 'ms')"
        )
    return Command(tuple(arguments))


def targets_of(given: Target | Sequence[Target]) -> tuple[Target, ...]:
    """The targets that a user named."""
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not found or not all(isinstance(each, Target) for each in found):
        raise _refused(f"{given!r} is not where alerts can be sent to", "ms.email(…), ms.webhook(…), ms.slack(…), …")
    return found


def _address(url: str) -> Secret:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused("a webhook needs an http or https address", "for example ms.webhook('https://example.org/hook')")
    return Secret(url)


def _host_of(url: Secret) -> str:
    return urlsplit(url.reveal()).hostname or ""


def _post(target: Target, url: str, body: bytes, headers: dict[str, str]) -> None:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json; charset=utf-8", **headers})
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise _not_sent(target, f"{type(error).__name__}: {error}", "check that it runs") from error
    if not 200 <= status < 300:
        raise _not_sent(target, f"it answered {status}", "check its address, and what it accepts")


def _not_sent(target: Target, why: str, next_step: str) -> AlertNotSent:
    return AlertNotSent(f"an alert was not sent: {why}", where=str(target), next_step=next_step)


def _refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
