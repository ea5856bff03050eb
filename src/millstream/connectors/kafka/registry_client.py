"""Requests to a schema registry over HTTP: bounded in size and time, repeated with growing pauses while it is away.

Settings are among Kafka's, under the names that other clients use: `basic.auth.user.info`, `bearer.auth.token`, and
`schema.registry.ssl.…` for certificates.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from millstream import terminal
from millstream.errors import InvalidSetting, KafkaUnavailable, MillstreamError, NoAccess, NotFound
from millstream.log.kafka.address import KafkaAddress
from millstream.records.bounds import size_text, valid_text
from millstream.secrets import Secret, revealed, shown_address

ANSWER_SECONDS = 10.0
ANSWER_SECONDS_MAX = 30.0  # in total, for an answer that trickles in
ANSWER_BYTES_MAX = 4 << 20
ERROR_BYTES_MAX = 64 << 10
READ_BYTES = 1 << 16
TRIES = 3
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 15.0
PASSING = (408, 429)
PREFIX = "schema.registry."
USER, TOKEN = "basic.auth.user.info", "bearer.auth.token"
CA, CERTIFICATE, KEY, KEY_PASSWORD = (
    f"{PREFIX}ssl.{name}" for name in ("ca.location", "certificate.location", "key.location", "key.password")
)
CONTENT = "application/vnd.schemaregistry.v1+json"


class _Refusing(urllib.request.HTTPRedirectHandler):
    """Redirects are not followed: the password would be sent to another host."""

    def redirect_request(self, req: urllib.request.Request, *_: Any) -> None:
        return None  # the redirect becomes an error


logger = terminal.logger(__name__)


class TooLarge(Exception):
    """An answer beyond ANSWER_BYTES_MAX."""


@dataclass
class Declined(Exception):
    """The registry declined a request: its status, its own code, and its message."""

    status: int
    code: int
    message: str


@dataclass(eq=False)
class RegistryClient:
    url: str
    user: Secret | None = None
    """As `name:password`."""
    token: Secret | None = None
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    """Those of TLS."""
    wait_seconds: float = 0.0
    """How long a request is repeated while the registry is away; 0: TRIES times."""

    @classmethod
    def of(cls, url: str, address: KafkaAddress, wait_seconds: float = 0.0) -> RegistryClient:
        """With the user, the token and the certificates in the Kafka settings, if any."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSetting(
                "the address of a schema registry begins with http:// or https://", next_step="http://host:8081"
            )
        if "@" in parts.netloc:
            raise InvalidSetting(
                "the address must not have a user or a password: it is shown and stored",
                where=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
                next_step=f"set them with settings={{'{USER}': 'name:password'}}",
            )
        if parts.query or parts.fragment:
            raise InvalidSetting(
                "the address of a schema registry must not have a query: it is shown and stored",
                where=shown_address(url),
                next_step="remove everything after the '?'",
            )
        held = revealed(address.settings)
        user, token = (held.get(PREFIX + name) or held.get(name) for name in (USER, TOKEN))
        if user and token:
            raise InvalidSetting(f"a schema registry takes either {USER} or {TOKEN}", next_step="remove one of them")
        tls = {name: held[name] for name in (CA, CERTIFICATE, KEY, KEY_PASSWORD) if held.get(name)}
        return cls(url.rstrip("/"), Secret(user) if user else None, Secret(token) if token else None, tls, wait_seconds)

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        if not self.settings:
            return urllib.request.build_opener(_Refusing)
        try:
            context = ssl.create_default_context(cafile=self.settings.get(CA))
            if CERTIFICATE in self.settings:
                context.load_cert_chain(
                    self.settings[CERTIFICATE], self.settings.get(KEY), self.settings.get(KEY_PASSWORD, "")
                )
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(
                f"the certificates for the schema registry cannot be used: {getattr(error, 'strerror', None) or error}",
                where=self.url,
                next_step=f"check {CA}, {CERTIFICATE} and {KEY} in the settings; the files must be on all workers",
            ) from None
        return urllib.request.build_opener(_Refusing, urllib.request.HTTPSHandler(context=context))

    def ask(self, path: str, content: Any = None, *, patiently: bool = True) -> Any:
        """The JSON that the registry answers with; raises Declined, TooLarge, or an error of Millstream."""
        request = urllib.request.Request(self.url + path)
        request.add_header("Accept", f"{CONTENT}, application/json")
        if content is not None:
            request.data = json.dumps(content).encode()
            request.add_header("Content-Type", CONTENT)
        if self.user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(self.user.reveal().encode()).decode())
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token.reveal()}")
        attempt, pause_s = 1, PAUSE_SECONDS
        deadline = time.monotonic() + (self.wait_seconds if patiently else 0.0)
        while True:
            try:
                with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                    return json.loads(_content(answer))
            except urllib.error.HTTPError as refusal:
                failure: Exception = refusal
                with refusal:
                    if refusal.code < 400:
                        raise self._elsewhere(refusal.headers.get("Location")) from None
                    if refusal.code in (401, 403):
                        raise self._no_access() from None
                    if refusal.code < 500 and refusal.code not in PASSING:
                        raise _declined(refusal) from None
            except ssl.SSLCertVerificationError as error:
                raise self._untrusted(error.verify_message) from None
            except ValueError:
                raise self.strange("something that is not JSON") from None
            except RecursionError:
                raise self.strange("JSON that is nested too deeply") from None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(inner := getattr(error, "reason", None), ssl.SSLCertVerificationError):
                    raise self._untrusted(inner.verify_message) from None
                failure = error
            if attempt >= TRIES and time.monotonic() + pause_s > deadline:
                raise self._away(failure)
            if attempt == TRIES:
                logger.warning("waiting for the schema registry at %s: %s", self.url, _reason(failure))
            time.sleep(pause_s)
            attempt, pause_s = attempt + 1, min(PAUSE_SECONDS_MAX, pause_s * 2) if attempt >= TRIES else pause_s

    def check(self) -> None:
        """Raises if there is no registry that answers, so that a job does not start."""
        try:
            self.ask("/schemas/types", patiently=False)
        except Declined:  # a registry of 2020, or none
            try:
                self.ask("/subjects", patiently=False)
            except Declined as refusal:
                raise self.not_found(refusal.status) from None
            except TooLarge:
                return  # it has many subjects

    def not_found(self, status: int) -> MillstreamError:
        return NotFound(
            f"the schema registry does not answer a request for a schema (HTTP {status})",
            where=self.url,
            next_step="check the address: registry='http://host:8081'",
        )

    def strange(self, what: str) -> MillstreamError:
        return InvalidSetting(
            f"the schema registry answers with {what}",
            where=self.url,
            next_step="check the address: registry='http://host:8081'",
        )

    def _away(self, failure: Exception) -> MillstreamError:
        return KafkaUnavailable(
            f"the schema registry does not answer: {_reason(failure)}",
            where=self.url,
            next_step="check that it is running; the job resumes from its last completed batch",
        )

    def _elsewhere(self, address: str | None) -> MillstreamError:
        return InvalidSetting(
            f"the schema registry redirects to {shown_address(address or 'another host')}, where the password does not "
            "follow",
            where=self.url,
            next_step="if that is right, use that address: registry='https://host'",
        )

    def _no_access(self) -> MillstreamError:
        return NoAccess(
            "the schema registry rejected the user or the password",
            where=self.url,
            next_step=f"set them with settings={{'{USER}': 'name:password'}} or {{'{TOKEN}': …}}",
        )

    def _untrusted(self, why: str) -> MillstreamError:
        return InvalidSetting(
            f"the certificate of the schema registry is not trusted: {why}",
            where=self.url,
            next_step=f"name the file of its certificate authority: settings={{'{CA}': …}}",
        )


def _reason(failure: Exception) -> object:
    return getattr(failure, "reason", None) or failure


def _content(answer: Any) -> bytes:
    """The answer's bytes, limited in size and time."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    content = bytearray()
    while piece := answer.read1(READ_BYTES):
        content += piece
        if len(content) > ANSWER_BYTES_MAX:
            raise TooLarge(f"the answer has more than {size_text(ANSWER_BYTES_MAX)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"an answer was not complete within {ANSWER_SECONDS_MAX:.0f} seconds")
    if answer.length:
        raise http.client.IncompleteRead(bytes(content), answer.length)
    return bytes(content)


def _declined(refusal: urllib.error.HTTPError) -> Declined:
    """With the registry's own words, if it has any."""
    try:
        answer = json.loads(refusal.read(ERROR_BYTES_MAX))
        return Declined(refusal.code, int(answer["error_code"]), valid_text(str(answer["message"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return Declined(refusal.code, refusal.code, "")
