"""Values in Confluent's wire format: a zero, the id of the writer's schema in four bytes, then the record itself.

The schema is fetched once by id from a schema registry, with the schemas it refers to. Ids and schemas come from the
writers of the topic: a value without a known id, or with an unusable schema, is a dead letter. An unreachable registry
is an error, since it would affect every value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

from millstream import terminal
from millstream.connectors.kafka.registry_client import Declined, RegistryClient, TooLarge
from millstream.connectors.kafka.wire_format import HEADER_BYTES, MAGIC, message_indexes
from millstream.errors import InvalidInput, InvalidSetting, MillstreamError, UnknownSchema, UnusableSchema
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Codec, Schema, codec
from millstream.records.bounds import valid_text
from millstream.records.codecs import AvroCodec
from millstream.records.codecs.avro_references import self_contained
from millstream.records.columns import Faults, Refused, Rules
from millstream.secrets import Secret

KNOWN_MAX, KNOWN_CHARACTERS_MAX = 1000, 16 << 20
FORGET_SECONDS = 60.0  # a missing schema may have been registered since
REFERENCES_MAX = 200
UNKNOWN = (400, 404, 410, 422)  # registries differ in their answer to an id out of range
AVRO, PROTOBUF = "AVRO", "PROTOBUF"
KINDS = {"avro": AVRO, "protobuf": PROTOBUF, "json": "JSON"}
"""What a registry calls our formats."""

logger = terminal.logger(__name__)


@dataclass(frozen=True)
class _Known:
    """The registry's answer for an id: a usable schema, or an error."""

    text: str = ""
    """Of Avro: with all that it refers to."""
    files: tuple[Any, ...] = ()
    """Of Protobuf: the descriptors, imports first."""
    error: UnknownSchema | UnusableSchema | None = None
    until: float = float("inf")

    @property
    def size(self) -> int:
        return len(self.text) + sum(int(each.ByteSize()) for each in self.files)


@dataclass(eq=False)
class Registry:
    """Reads the schemas of a registry. They are cached forever, since ids are never reused."""

    url: str
    user: Secret | None = None
    """As `name:password`."""
    client: RegistryClient = None  # type: ignore[assignment]
    _known: dict[tuple[int, str], _Known] = field(default_factory=dict, repr=False)
    _known_characters: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.client is None:
            self.client = RegistryClient(self.url, self.user)

    @classmethod
    def of(cls, url: str, address: KafkaAddress, wait_seconds: float = 0.0) -> Registry:
        """With the credentials in the Kafka settings, if any."""
        client = RegistryClient.of(url, address, wait_seconds)
        return cls(client.url, client.user, client)

    def avro(self, number: int) -> str:
        """The text of the Avro schema with this id; raises UnknownSchema or UnusableSchema."""
        return self._schema(number, AVRO).text

    def protobuf(self, number: int) -> tuple[Any, ...]:
        """The descriptors of the file with this id, after those of its imports."""
        return self._schema(number, PROTOBUF).files

    def check(self) -> None:
        """Raises if the registry does not answer."""
        self.client.check()

    def _schema(self, number: int, kind: str) -> _Known:
        known = self._known.get((number, kind))
        if known is None or known.until < time.monotonic():
            known = self._looked_up(number, kind)
            self._remember((number, kind), known)
        if known.error is not None:
            raise known.error.with_traceback(None)
        return known

    def _looked_up(self, number: int, kind: str) -> _Known:
        try:
            found = self._ask(f"/schemas/ids/{number}", number)
            held = found.get("schemaType") or AVRO
            if held != kind:
                shown = {AVRO: "Avro", PROTOBUF: "Protobuf"}[kind]
                return _Known(error=self.unusable(number, f"it is {valid_text(str(held)[:40])}, not {shown}"))
            if kind == PROTOBUF:
                return _Known(files=self._files(found, number))
            return _Known(self._avro_text(found, number))
        except (UnknownSchema, UnusableSchema) as error:
            logger.warning("%s; its values become dead letters", error.what)
            return _Known(error=error, until=time.monotonic() + FORGET_SECONDS)

    def _avro_text(self, found: dict[str, Any], number: int) -> str:
        others = self._references(found, number)
        if not others:
            return str(found["schema"])
        try:
            return self_contained(str(found["schema"]), list(others.values()))
        except (Refused, ValueError, RecursionError) as error:
            raise self.unusable(number, f"its references cannot be used: {valid_text(str(error)[:200])}") from None

    def _files(self, found: dict[str, Any], number: int) -> tuple[Any, ...]:
        from millstream.records.codecs.proto_files import files_of

        others = self._references(found, number)
        try:
            return tuple(files_of(str(found["schema"]), f"schema-{number}.proto", others.get))
        except InvalidSetting as error:
            raise self.unusable(number, valid_text(error.what)) from None

    def _references(self, found: dict[str, Any], number: int) -> dict[str, str]:
        """The texts of all schemas that one refers to, also indirectly, by name; those that others need come first."""
        texts: dict[str, str] = {}
        asked: set[tuple[str, int]] = set()

        def add(references: Any) -> None:
            for each in references or ():
                try:
                    name, place = str(each["name"]), (str(each["subject"]), int(each["version"]))
                except (KeyError, TypeError, ValueError):
                    raise self.unusable(number, "a reference has no name, subject or version") from None
                if place in asked:
                    continue
                asked.add(place)
                if len(asked) > REFERENCES_MAX:
                    raise self.unusable(number, f"it refers to more than {REFERENCES_MAX} other schemas")
                subject = quote(place[0], safe="")
                answer = self._ask(f"/subjects/{subject}/versions/{place[1]}", number, place)
                add(answer.get("references"))
                texts[name] = str(answer["schema"])

        try:
            add(found.get("references"))
        except RecursionError:
            raise self.unusable(number, "its references are nested too deeply") from None
        return texts

    def _remember(self, place: tuple[int, str], known: _Known) -> None:
        self._known_characters += known.size - self._known.pop(place, _Known()).size
        self._known[place] = known
        while len(self._known) > KNOWN_MAX or self._known_characters > KNOWN_CHARACTERS_MAX:
            self._known_characters -= self._known.pop(next(iter(self._known))).size

    def _ask(self, path: str, number: int, place: tuple[str, int] | None = None) -> dict[str, Any]:
        try:
            found = self.client.ask(path)
        except TooLarge as error:
            raise self.unusable(number, str(error)) from None
        except Declined as refusal:
            raise self._refused(number, refusal.status, place) from None
        if isinstance(found, dict) and "schema" in found:
            return found
        raise self.client.strange(f"something other than a schema, asked for schema {number}")

    def unusable(self, number: int, why: str) -> UnusableSchema:
        return UnusableSchema(
            f"the schema {number} of the schema registry cannot be used: {why}",
            where=self.url,
            next_step="read such values with format='bytes'",
        )

    def _refused(self, number: int, status: int, place: tuple[str, int] | None) -> MillstreamError:
        if status not in UNKNOWN:
            return self.client.not_found(status)
        if place is not None:
            subject, version = valid_text(place[0]), place[1]
            return self.unusable(number, f"it refers to version {version} of '{subject}', which is not there")
        return UnknownSchema(
            f"the schema registry has no schema {number}, which a value refers to (HTTP {status})",
            where=self.url,
            next_step="check that it is the registry that the producers use",
        )


@dataclass(frozen=True)
class RegistryCodec(Codec):
    """Decodes what follows the header, with the schema that it names. How values are written: `subjects.py`."""

    format: str
    registry: Registry = field(compare=False, repr=False)
    name: ClassVar[str] = "registry"

    def _rules(self) -> Rules:
        return codec(self.format, self.schema)._rules()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        groups: dict[tuple[int, tuple[int, ...]], list[tuple[int, bytes]]] = {}
        for position, value in enumerate(values):
            if len(value) < HEADER_BYTES or value[0] != MAGIC:
                faults[position] = "the value does not start with a schema id"
                continue
            indexes: tuple[int, ...] = ()
            number, begin = int.from_bytes(value[1:HEADER_BYTES], "big"), HEADER_BYTES
            if self.format == "protobuf":
                try:
                    indexes, begin = message_indexes(value)
                except Refused as refusal:
                    faults[position] = str(refusal)
                    continue
            elif self.format == "json":
                number = 0  # read without its schema
            groups.setdefault((number, indexes), []).append((position, value[begin:]))
        columns: list[list[Any]] = [[None] * len(values) for _ in self.schema.names]
        for (number, indexes), own in groups.items():
            found: Faults = {}
            try:
                reader = self._reader(number, indexes)
            except (UnknownSchema, UnusableSchema) as refusal:
                faults.update({position: refusal.what for position, _ in own})
                continue
            read = reader._columns([body for _, body in own], found)
            for column, parts in zip(columns, read, strict=True):
                for (position, _), part in zip(own, parts, strict=True):
                    column[position] = part
            faults.update({own[index][0]: reason for index, reason in found.items()})
        return columns

    def _reader(self, number: int, indexes: tuple[int, ...]) -> Codec:
        """For values of the writer's schema; formats without one, such as JSON, are read as they are."""
        if self.format == "json":
            return codec(self.format, self.schema)
        held: Any = self.registry.avro(number) if self.format == "avro" else self.registry.protobuf(number)
        try:
            return AvroCodec(self.schema, held) if self.format == "avro" else self._protobuf(held, indexes)
        except InvalidInput as refusal:  # columns of another type than the fields of this writer are no better
            raise self.registry.unusable(number, valid_text(refusal.what)) from None

    def _protobuf(self, files: tuple[Any, ...], indexes: tuple[int, ...]) -> Codec:
        from millstream.records.codecs.proto_files import type_in

        found = type_in(files[-1].name, files, indexes)
        return codec("protobuf", self.schema, message=found.name, descriptors=found.files)


def registry_codec(schema: Schema, format: str, registry: Registry) -> Codec:
    return RegistryCodec(schema, format, registry)
