"""Values in Confluent's wire format: a zero, the id of the writer's schema in four bytes, then the record itself.

The schema is fetched once by id from a schema registry. Ids and schemas come from the writers of the topic: a value
without a known id, or with an unusable schema, is a dead letter. An unreachable registry is an error, since it would
affect every value.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from millstream import terminal
from millstream.errors import (
    InvalidSetting,
    KafkaUnavailable,
    MillstreamError,
    NoAccess,
    NotFound,
    UnknownSchema,
    UnusableSchema,
)
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Codec, Schema, codec
from millstream.records.bounds import size_text, valid_text
from millstream.records.codecs import AvroCodec
from millstream.records.columns import Faults, Rules
from millstream.secrets import Secret, revealed, shown_address

MAGIC = 0
HEADER_BYTES = 5
ANSWER_SECONDS = 10.0
ANSWER_SECONDS_MAX = 30.0  # in total, for an answer that trickles in
ANSWER_BYTES_MAX = 4 << 20
READ_BYTES = 1 << 16
KNOWN_MAX, KNOWN_CHARACTERS_MAX = 1000, 16 << 20
FORGET_SECONDS = 60.0  # a missing schema may have been registered since
TRIES = 3
UNKNOWN = (400, 404, 410, 422)  # registries differ in their answer to an id out of range
PASSING = (408, 429)
USER = "basic.auth.user.info"


class _Refusing(urllib.request.HTTPRedirectHandler):
    """Redirects are not followed: the password would be sent to another host."""

    def redirect_request(self, req: urllib.request.Request, *_: Any) -> None:
        return None  # the redirect becomes an error


logger = terminal.logger(__name__)
_OPENER = urllib.request.build_opener(_Refusing)


@dataclass(frozen=True)
class _Known:
    """The registry's answer for an id: the schema's text, or an error."""

    text: str = ""
    error: UnknownSchema | UnusableSchema | None = None
    until: float = float("inf")


@dataclass(eq=False)
class Registry:
    """A client of a schema registry. Schemas are cached forever, since ids are never reused."""

    url: str
    user: Secret | None = None
    """As `name:password`."""
    _known: dict[int, _Known] = field(default_factory=dict, repr=False)
    _known_characters: int = field(default=0, repr=False)

    @classmethod
    def of(cls, url: str, address: KafkaAddress) -> Registry:
        """With the user in the Kafka settings, if any."""
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
        user = revealed(address.settings).get(USER)
        return cls(url.rstrip("/"), Secret(user) if user else None)

    def avro(self, number: int) -> str:
        """The text of the Avro schema with this id; raises UnknownSchema or UnusableSchema."""
        known = self._known.get(number)
        if known is None or known.until < time.monotonic():
            known = self._looked_up(number)
            self._remember(number, known)
        if known.error is not None:
            raise known.error.with_traceback(None)
        return known.text

    def _looked_up(self, number: int) -> _Known:
        try:
            found = self._ask(number)
        except (UnknownSchema, UnusableSchema) as error:
            logger.warning("%s; its values become dead letters", error.what)
            return _Known(error=error, until=time.monotonic() + FORGET_SECONDS)
        kind = found.get("schemaType", "AVRO")
        if kind != "AVRO":
            return _Known(error=self.unusable(number, f"it is {valid_text(str(kind)[:40])}, not Avro"))
        if found.get("references"):
            return _Known(error=self.unusable(number, "it refers to other schemas, which is not supported"))
        return _Known(str(found["schema"]))

    def _remember(self, number: int, known: _Known) -> None:
        self._known_characters += len(known.text) - len(self._known.pop(number, _Known()).text)
        self._known[number] = known
        while len(self._known) > KNOWN_MAX or self._known_characters > KNOWN_CHARACTERS_MAX:
            self._known_characters -= len(self._known.pop(next(iter(self._known))).text)

    def _ask(self, number: int) -> dict[str, Any]:
        asked = urllib.request.Request(f"{self.url}/schemas/ids/{number}")
        asked.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.user is not None:
            asked.add_header("Authorization", "Basic " + base64.b64encode(self.user.reveal().encode()).decode())
        for attempt in range(TRIES):
            try:
                with _OPENER.open(asked, timeout=ANSWER_SECONDS) as answer:
                    found = json.loads(self._content(answer, number))
                if isinstance(found, dict) and "schema" in found:
                    return found
                raise self._strange(number, "something other than a schema")
            except urllib.error.HTTPError as refusal:
                refusal.close()
                if refusal.code < 400:
                    raise self._elsewhere(refusal.headers.get("Location")) from None
                if refusal.code < 500 and refusal.code not in PASSING:
                    raise self._refused(number, refusal.code) from None
                failure: Exception = refusal
            except ValueError:
                raise self._strange(number, "something that is not JSON") from None
            except RecursionError:
                raise self._strange(number, "JSON that is nested too deeply") from None
            except (OSError, http.client.HTTPException) as error:
                failure = error
            if attempt + 1 < TRIES:
                time.sleep(0.5)
        reason = getattr(failure, "reason", None) or failure
        raise KafkaUnavailable(
            f"the schema registry does not answer: {reason}",
            where=self.url,
            next_step="check that it is running; the job resumes from its last completed batch",
        )

    def _content(self, answer: Any, number: int) -> bytes:
        """The answer's bytes, limited in size and time."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        content = bytearray()
        while piece := answer.read1(READ_BYTES):
            content += piece
            if len(content) > ANSWER_BYTES_MAX:
                raise self.unusable(number, f"the answer has more than {size_text(ANSWER_BYTES_MAX)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"an answer was not complete within {ANSWER_SECONDS_MAX:.0f} seconds")
        if answer.length:
            raise http.client.IncompleteRead(bytes(content), answer.length)
        return bytes(content)

    def unusable(self, number: int, why: str) -> UnusableSchema:
        return UnusableSchema(
            f"the schema {number} of the schema registry cannot be used: {why}",
            where=self.url,
            next_step="read such values with format='bytes'",
        )

    def _elsewhere(self, address: str | None) -> MillstreamError:
        return InvalidSetting(
            f"the schema registry redirects to {shown_address(address or 'another host')}, where the password does not "
            "follow",
            where=self.url,
            next_step="if that is right, use that address: registry='https://host'",
        )

    def _strange(self, number: int, what: str) -> MillstreamError:
        return InvalidSetting(
            f"asked for schema {number}, the schema registry answers with {what}",
            where=self.url,
            next_step="check the address: registry='http://host:8081'",
        )

    def _refused(self, number: int, status: int) -> MillstreamError:
        if status in (401, 403):
            return NoAccess(
                "the schema registry rejected the user or the password",
                where=self.url,
                next_step=f"set them with settings={{'{USER}': 'name:password'}}",
            )
        if status in UNKNOWN:
            return UnknownSchema(
                f"the schema registry has no schema {number}, which a value refers to (HTTP {status})",
                where=self.url,
                next_step="check that it is the registry that the producers use",
            )
        return NotFound(
            f"the schema registry does not answer a request for a schema (HTTP {status})",
            where=self.url,
            next_step="check the address: registry='http://host:8081'",
        )


@dataclass(frozen=True)
class RegistryCodec(Codec):
    """Decodes the bytes after the header; encodes without a header, for lack of an id."""

    format: str
    registry: Registry = field(compare=False, repr=False)
    name: ClassVar[str] = "registry"

    def _rules(self) -> Rules:
        return codec(self.format, self.schema)._rules()

    def _encoded(self, rows: Any) -> Any:
        return codec(self.format, self.schema)._encoded(rows)

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        positions: dict[int, list[int]] = {}
        for position, value in enumerate(values):
            if len(value) < HEADER_BYTES or value[0] != MAGIC:
                faults[position] = "the value does not start with a schema id"
            else:
                number = int.from_bytes(value[1:HEADER_BYTES], "big") if self.format == "avro" else 0
                positions.setdefault(number, []).append(position)
        columns: list[list[Any]] = [[None] * len(values) for _ in self.schema.names]
        for number, own in positions.items():
            found: Faults = {}
            try:
                reader = self._reader(number)
            except (UnknownSchema, UnusableSchema) as refusal:
                faults.update(dict.fromkeys(own, refusal.what))
                continue
            read = reader._columns([values[position][HEADER_BYTES:] for position in own], found)
            faults.update({own[index]: reason for index, reason in found.items()})
            for column, parts in zip(columns, read, strict=True):
                for position, part in zip(own, parts, strict=True):
                    column[position] = part
        return columns

    def _reader(self, number: int) -> Codec:
        """For values of the writer's schema; formats without one, such as JSON, are read as they are."""
        if self.format != "avro":
            return codec(self.format, self.schema)
        text = self.registry.avro(number)
        try:
            return AvroCodec(self.schema, text)
        except InvalidSetting as refusal:
            raise self.registry.unusable(number, refusal.what) from None


def registry_codec(schema: Schema, format: str, registry: Registry) -> Codec:
    return RegistryCodec(schema, format, registry)
