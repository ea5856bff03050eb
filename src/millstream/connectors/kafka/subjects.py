"""Registers the schema of the rows that are written, and checks first that the registry would accept it.

This happens before the job starts, so an incompatible schema never reaches the topic. From then on values carry the id,
and the registry is not needed until the columns change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.kafka.json_schema import json_schema_of
from millstream.connectors.kafka.registry_client import Declined, RegistryClient, TooLarge
from millstream.connectors.kafka.schema_registry import KINDS
from millstream.connectors.kafka.wire_format import header
from millstream.errors import IncompatibleSchema, InvalidSchema, MillstreamError, UnknownSchema
from millstream.records import Codec, Encoded, Schema, codec
from millstream.records.codecs.avro import avro_schema_of
from millstream.records.columns import Faults, Rules

NAMINGS = ("topic", "record", "topic_record")
_DESCRIPTION = re.compile(r"description:\s*['\"](.*?)['\"],\s*additionalInfo")
_NOTES = ("oldSchema", "compatibility:", "validateFields")
_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error):\s*")
_PLACE = re.compile(r"(/fields/\d+(?:/\w+)*)'?")


@dataclass(frozen=True)
class Definition:
    """A schema as it is registered."""

    kind: str
    text: str
    name: str
    """The full name of the record, for subjects that are named by it."""
    imports: tuple[tuple[str, Definition], ...] = ()
    indexes: tuple[int, ...] | None = None
    """The place of a Protobuf message."""


@dataclass(eq=False)
class Subjects:
    """The subjects of a registry, for writing."""

    client: RegistryClient
    registers: bool = True
    """Whether new schemas are registered; otherwise they must exist."""

    def number(self, subject: str, definition: Definition) -> int:
        """The id of a schema under a subject; raises IncompatibleSchema if the registry rejects it."""
        return int(self._registered(subject, definition)["id"])

    def _registered(self, subject: str, definition: Definition) -> dict[str, Any]:
        content = self._content(definition)
        path = f"/subjects/{quote(subject, safe='')}"
        found = self._ask(path, content, missing=True, subject=subject)
        if found is None:
            if not self.registers:
                raise UnknownSchema(
                    f"subject '{subject}' does not have the schema of the rows, and register=False",
                    where=self.client.url,
                    next_step=f"register it, or leave register out: {_shortened(definition.text)}",
                )
            self._check(subject, definition, content)
            self._ask(f"{path}/versions", content, subject=subject, definition=definition)
            found = self._ask(path, content, subject=subject)
        if not isinstance(found, dict) or not isinstance(found.get("id"), int):
            raise self.client.strange("something other than the id of a schema")
        return found

    def _content(self, definition: Definition) -> dict[str, Any]:
        content: dict[str, Any] = {"schema": definition.text}
        if definition.kind != KINDS["avro"]:
            content["schemaType"] = definition.kind
        if definition.imports:
            content["references"] = [
                {"name": name, "subject": name, "version": self._registered(name, other)["version"]}
                for name, other in definition.imports
            ]
        return content

    def _check(self, subject: str, definition: Definition, content: dict[str, Any]) -> None:
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        answer = self._ask(path, content, missing=True, subject=subject, definition=definition)
        if not isinstance(answer, dict) or answer.get("is_compatible", True):
            return  # or there is no version yet
        messages = answer.get("messages")
        if isinstance(messages, list) and messages:
            raise self._incompatible(subject, definition, list(map(str, messages)))
        # Without messages, the reasons are in the answer to the registration, which is rejected too.

    def _ask(
        self,
        path: str,
        content: dict[str, Any],
        *,
        subject: str,
        missing: bool = False,
        definition: Definition | None = None,
    ) -> Any:
        """None for a subject or schema that is not there, if `missing`."""
        try:
            return self.client.ask(path, content)
        except TooLarge as error:
            raise self.client.strange(str(error)) from None
        except Declined as refusal:
            if refusal.status == 404 and missing:
                return None
            if refusal.status == 409 and definition is not None:
                raise self._incompatible(subject, definition, [refusal.message]) from None
            raise self._rejected(subject, refusal) from None

    def _incompatible(self, subject: str, definition: Definition, messages: Sequence[str]) -> MillstreamError:
        reasons = list(dict.fromkeys(_named(_plain(each), definition) for each in messages if not _is_note(each)))
        reasons += self._changed_fields(subject, definition)
        return IncompatibleSchema(
            f"subject '{subject}' of the schema registry rejects the columns: {'; '.join(reasons) or 'incompatible'}",
            where=self.client.url,
            next_step="give added columns no NOT NULL, keep the types and names of the others, or write to another "
            f"topic; or change what the registry allows for '{subject}': its compatibility level",
        )

    def _changed_fields(self, subject: str, definition: Definition) -> list[str]:
        """Of Protobuf: not every registry names the fields."""
        if definition.kind != KINDS["protobuf"]:
            return []
        from millstream.records.codecs.proto_differences import differences
        from millstream.records.codecs.proto_text import BadProto

        try:
            newest = self.client.ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
            return differences(str(newest["schema"]), definition.text)
        except (Declined, TooLarge, BadProto, KeyError, TypeError, MillstreamError):
            return []  # then the registry's own words have to do

    def _rejected(self, subject: str, refusal: Declined) -> MillstreamError:
        if refusal.status in (404, 405):
            return self.client.not_found(refusal.status)
        return InvalidSchema(
            f"the schema registry rejects the schema of subject '{subject}' (HTTP {refusal.status}, "
            f"code {refusal.code}): {_plain(refusal.message)}",
            where=self.client.url,
            next_step="check that the registry accepts this kind of schema, and that the subject is not read-only",
        )


def _is_note(message: str) -> bool:
    return message.lstrip("{").startswith(_NOTES)


def _plain(message: str) -> str:
    described = _DESCRIPTION.search(message)
    return described[1] if described else _CLASS.sub("", message).strip()


def _named(message: str, definition: Definition) -> str:
    """With the name of the field behind each place in an Avro schema."""
    if definition.kind != KINDS["avro"]:
        return message

    def with_name(match: re.Match[str]) -> str:
        at: Any = json.loads(definition.text)
        names = []
        try:
            before = ""
            for part in match[1].strip("/").split("/"):
                at = at[int(part)] if isinstance(at, list) else at[part]
                if before == "fields":
                    names.append(at["name"])
                before = part
        except (KeyError, IndexError, ValueError, TypeError):
            pass
        return f"{match[0]} (field '{'.'.join(names)}')" if names else match[0]

    return _PLACE.sub(with_name, message)


def _shortened(text: str) -> str:
    return text if len(text) <= 500 else text[:500] + "…"


# ---------------------------------------------------------------- from columns to values


def record_name(topic: str) -> str:
    """For the record of a derived schema: `shop-orders` has records `ShopOrders`."""
    found = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", topic))
    return found if found[:1].isalpha() else f"Record{found}"


def subject_of(naming: str, topic: str, name: str) -> str:
    return {"topic": f"{topic}-value", "record": name, "topic_record": f"{topic}-{name}"}[naming]


def plain_codec(format: str, schema: Schema, topic: str, options: dict[str, Any]) -> Codec:
    """The codec of the values without their header; a derived schema is named after the topic."""
    if options or format == "json":
        return codec(format, schema, **options)
    if format == "avro":
        return codec(format, schema, avro_schema=avro_schema_of(schema, name=record_name(topic)))
    from millstream.records.codecs.proto_shape import message_of_schema

    made = message_of_schema(schema, name=record_name(topic))
    return codec(format, schema, message=made.name, descriptors=made.files)


def definition_of(made: Codec, topic: str) -> Definition:
    """What is registered for the values of a codec."""
    if made.name == "avro":
        text = str(getattr(made, "avro_schema", None))
        return Definition(KINDS["avro"], text, _avro_name(json.loads(text)))
    if made.name == "json":
        name = record_name(topic)
        return Definition(KINDS["json"], json.dumps(json_schema_of(made.schema, name)), name)
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from millstream.records.codecs.proto_files import WELL_KNOWN
    from millstream.records.codecs.proto_print import proto_text

    type = getattr(made, "type")  # noqa: B009  the module of its class is imported lazily
    files = {each.name: each for each in FileDescriptorSet.FromString(type.files).file}

    def defined(name: str) -> Definition:
        imports = tuple((other, defined(other)) for other in files[name].dependency if not other.startswith(WELL_KNOWN))
        return Definition(KINDS["protobuf"], proto_text(files[name]), name, imports)

    main = defined(type.descriptor.file.name)
    return Definition(main.kind, main.text, type.name, main.imports, type.indexes)


def _avro_name(schema: dict[str, Any]) -> str:
    name, namespace = str(schema["name"]), schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


@dataclass(frozen=True)
class FramedCodec(Codec):
    """Writes values with the header of the wire format."""

    inner: Codec
    begin: bytes = field(repr=False)
    name: ClassVar[str] = "registry"

    def encode_each(self, rows: pa.RecordBatch) -> Encoded:
        found = self.inner.encode_each(rows)
        start = pa.scalar(self.begin, pa.binary())
        framed = pc.binary_join_element_wise(start, found.values, pa.scalar(b"", pa.binary()))
        return Encoded(framed, found.failures)

    def _rules(self) -> Rules:
        return self.inner._rules()

    def _columns(self, values: list[bytes], faults: Faults) -> Any:
        raise NotImplementedError("values are read with the schema that they name")


def framed_codec(
    client: RegistryClient, format: str, topic: str, options: dict[str, Any], naming: str, registers: bool
) -> Callable[[Schema], Codec]:
    """Makes the codec of the rows that are written, by registering their schema."""
    subjects = Subjects(client, registers)

    def make(schema: Schema) -> Codec:
        inner = plain_codec(format, schema, topic, options)
        inner.check_encodes()
        definition = definition_of(inner, topic)
        number = subjects.number(subject_of(naming, topic, definition.name), definition)
        return FramedCodec(schema, inner, header(number, definition.indexes))

    return make
