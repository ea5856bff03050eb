"""Where alerts are sent to: email, a signed webhook, a chat that takes Slack's JSON, or a command."""

from __future__ import annotations

import hashlib
import json
import re
import smtplib
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any, Literal, Self

from millstream.alerts.message import Notification
from millstream.errors import AlertNotSent, InvalidInput, SinkUnavailable
from millstream.secrets import Secret, hidden_options
from millstream.user_lines import AtUsersLine, users_line, what_exists
from millstream.webhooks.pacing import RateLimit
from millstream.webhooks.sender import TRIES, WebhookRefused, WebhookSender, host_of

TIMEOUT_S = 10.0
COMMAND_S_MAX = 30.0
ADDRESS = re.compile(r"[^@\s<>,;\"]+@[^@\s<>,;\"]+")
LOCAL = ("localhost", "127.0.0.1", "::1")
SECURITY = ("starttls", "tls", "none")
CHAT_CHARACTERS_MAX = 3000
Security = Literal["starttls", "tls", "none"]


class Target(ABC):
    """Sends notifications. It must be picklable, because plans are."""

    limit: RateLimit | None = None
    """How many notifications it gets; what comes too early is sent later, together."""

    def check_alerts(self) -> None:
        """Raises InvalidInput if it is not a target of alerts as it was given."""
        return

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
    limit: RateLimit | None = None

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
class WebhookTarget(Target):
    url: str = field(repr=False)
    secret: Secret | None = field(default=None, repr=False)
    headers: Mapping[str, str | Secret] = field(default_factory=dict, repr=False, hash=False)
    tries: int = TRIES
    ca_file: str | None = None
    limit: RateLimit | None = None

    @classmethod
    def of(
        cls,
        url: str,
        *,
        secret: str | Secret | None = None,
        headers: Mapping[str, str] | None = None,
        limit: str | None = None,
        tries: int = TRIES,
        ca_file: str | None = None,
    ) -> Self:
        hidden = Secret(secret) if isinstance(secret, str) else secret
        named = hidden_options(headers, besides=list(headers or {}))
        with AtUsersLine():
            made = cls(url, hidden, named, tries, ca_file, RateLimit.of(limit))
            made.sender().close()  # a wrong address or secret is reported here
        return made

    def sender(self) -> WebhookSender:
        return WebhookSender(self.url, self.secret, headers=self.headers, ca_file=self.ca_file)

    def __str__(self) -> str:
        return f"webhook at {host_of(self.url)}"

    def send(self, notification: Notification) -> None:
        _post(self, self.sender(), notification.document())


@dataclass(frozen=True)
class Slack(Target):
    url: Secret
    """It has a token."""
    limit: RateLimit | None = None

    def __str__(self) -> str:
        return f"chat at {host_of(self.url.reveal())}"

    def send(self, notification: Notification) -> None:
        text = f"*{notification.title}*\n{notification.text}"[:CHAT_CHARACTERS_MAX]
        _post(self, WebhookSender(self.url.reveal()), {"text": text})


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


# ---------------------------------------------------------------- what users call


def email(
    *to: str,
    host: str,
    port: int | None = None,
    sender: str | None = None,
    user: str | None = None,
    password: str | Secret | None = None,
    security: Security = "starttls",
    limit: str | None = None,
) -> Email:
    """Alerts by email, through an SMTP server. `security` is "starttls", "tls" or "none".

    `sender` is the address that it comes from; default: the first recipient. With `limit`, such as "10 per hour", what
    comes too early is sent later, in one mail.
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
    with AtUsersLine():
        rate = RateLimit.of(limit)
    return Email(tuple(to), host, port or ports[security], sender or to[0], user, secret, security, rate)


def slack(url: str, *, limit: str | None = None) -> Slack:
    """Alerts to a chat whose incoming webhooks take Slack's JSON."""
    with AtUsersLine():
        WebhookSender(url).close()  # a wrong address is reported here
        return Slack(Secret(url), RateLimit.of(limit))


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
    for each in found:
        each.check_alerts()
    return found


def _post(target: Target, sender: WebhookSender, document: Mapping[str, Any]) -> None:
    body = json.dumps(document, ensure_ascii=False).encode()
    post(target, sender, hashlib.blake2b(body, digest_size=16).hexdigest(), body)


def post(target: Target, sender: WebhookSender, id: str, body: bytes, content_type: str = "application/json") -> None:
    """Sends once: what fails is tried again with the messages that came meanwhile."""
    try:
        sender.deliver(id, body, content_type, tries=1)
    except (SinkUnavailable, WebhookRefused) as error:
        raise _not_sent(target, error.what, error.next_step or "check that it runs") from None  # it shows the address
    finally:
        sender.close()


def _not_sent(target: Target, why: str, next_step: str) -> AlertNotSent:
    return AlertNotSent(f"an alert was not sent: {why}", where=str(target), next_step=next_step)


def _refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
