"""HMAC signatures of webhooks: a body is from the owner of a secret, unchanged, and recent.

`standard` is the scheme of the Standard Webhooks specification, which signs id, time and body; `github` and `stripe`
are those of these two services. Secrets may be replaced without a gap: several can be valid at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.errors import InvalidSetting
from millstream.secrets import Secret

SCHEMES = ("standard", "github", "stripe")
TOLERANCE_SECONDS = 300.0
ENCODED_PREFIX = "whsec_"
SIGNATURES_MAX = 16


class BadSignature(Exception):
    """A request that no valid secret has signed; its text never repeats what was sent."""


def secret_bytes(secret: Secret) -> bytes:
    """A secret that begins with whsec_ is base64, as the specification has it; any other is used as it is."""
    text = secret.reveal()
    if not text.startswith(ENCODED_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(ENCODED_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidSetting(
            f"a secret begins with {ENCODED_PREFIX}, but the rest is not base64",
            next_step="copy it again, or use a secret without that prefix",
        ) from error


def signed_headers(secret: Secret, id: str, body: bytes, at: int) -> dict[str, str]:
    """The headers that sign a message by the scheme `standard`."""
    content = f"{id}.{at}.".encode() + body
    digest = base64.b64encode(_digest(secret_bytes(secret), content)).decode()
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": f"v1,{digest}"}


@dataclass(frozen=True)
class Verifier:
    """Checks the signatures of one scheme."""

    scheme: str
    secrets: Sequence[Secret] = field(repr=False)
    tolerance_seconds: float = TOLERANCE_SECONDS
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InvalidSetting(
                f"there is no signature scheme {self.scheme!r}", next_step=f"choose one of {', '.join(SCHEMES)}"
            )
        if not self.secrets:
            raise InvalidSetting("signatures cannot be checked without a secret", next_step="give at least one")
        object.__setattr__(self, "_keys", [secret_bytes(secret) for secret in self.secrets])

    def check(self, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
        """The id that is signed with the body, if the scheme has one. Raises BadSignature."""
        if self.scheme == "github":
            given = headers.get(b"x-hub-signature-256", b"")
            self._match([given.removeprefix(b"sha256=")], body, binascii.hexlify)
            return None
        if self.scheme == "stripe":
            parts = [part.partition(b"=") for part in headers.get(b"stripe-signature", b"").split(b",")]
            moment = next((value for name, _, value in parts if name.strip() == b"t"), b"")
            self._check_time(moment)
            signatures = [value for name, _, value in parts if name.strip() == b"v1"]
            self._match(signatures, moment + b"." + body, binascii.hexlify)
            return None
        id, moment = headers.get(b"webhook-id", b""), headers.get(b"webhook-timestamp", b"")
        if not id:
            raise BadSignature("the header webhook-id is missing")
        self._check_time(moment)
        given = headers.get(b"webhook-signature", b"")
        signatures = [part[3:] for part in given.split(b" ") if part.startswith(b"v1,")]
        self._match(signatures, b"%b.%b.%b" % (id, moment, body), base64.b64encode)
        return id.decode("latin-1")

    def _check_time(self, text: bytes) -> None:
        """An old request may be a recorded one that is sent again."""
        if not (text.isdigit() and len(text) <= 12):
            raise BadSignature("the time of the signature is missing or not a number of seconds")
        if abs(self.clock() - int(text)) > self.tolerance_seconds:
            raise BadSignature(f"the signature is more than {self.tolerance_seconds:g} seconds old, or from the future")

    def _match(self, given: Sequence[bytes], content: bytes, encode: Callable[[bytes], bytes]) -> None:
        keys: list[bytes] = self.__dict__["_keys"]
        expected = [encode(_digest(key, content)) for key in keys]
        matches = [hmac.compare_digest(each, own) for each in given[:SIGNATURES_MAX] for own in expected]
        if not any(matches):
            raise BadSignature("the signature is missing, or not by a known secret")


def _digest(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)
