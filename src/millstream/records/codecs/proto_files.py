"""Message types of Protobuf as values: the descriptors of their files, imports first, and the name of the message.

A message type comes from a generated class, from a descriptor set that protoc has written, or from a .proto file. In
each case it becomes plain bytes, so that a flow with it can be pickled and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from millstream.errors import InvalidSetting
from millstream.records.bounds import valid_text
from millstream.records.codecs.proto_text import BadProto, parsed_proto

FILES_BYTES_MAX = 8 << 20
IMPORTS_MAX = 1000
WELL_KNOWN = "google/protobuf/"
_STANDARD = (
    *("any", "api", "duration", "empty", "field_mask", "source_context"),
    *("struct", "timestamp", "type", "wrappers"),
)


@dataclass(frozen=True)
class MessageType:
    """A message by its full name, in the files of a serialized FileDescriptorSet."""

    files: bytes
    name: str

    @property
    def descriptor(self) -> Descriptor:
        return self.message_class.DESCRIPTOR

    @property
    def message_class(self) -> Any:
        return _message_class(self.files, self.name)

    @property
    def indexes(self) -> tuple[int, ...]:
        """Its place in its file: of the outermost message, then of each nested one."""
        found: list[int] = []
        at: Descriptor | None = self.descriptor
        while at is not None:
            siblings = at.file.message_types_by_name if at.containing_type is None else at.containing_type.nested_types
            names = [each if isinstance(each, str) else each.name for each in siblings]
            found.append(names.index(at.name))
            at = at.containing_type
        return tuple(reversed(found))


def message_type(message: Any, descriptors: Any) -> MessageType:
    """The message type that a user means; raises InvalidSetting."""
    described = getattr(message, "DESCRIPTOR", message)
    if isinstance(described, Descriptor):
        if descriptors is not None:
            raise InvalidSetting("a message class has its own descriptors", next_step="leave out descriptors=")
        return MessageType(_serialized(_with_imports(described.file)), described.full_name)
    if message is not None and not isinstance(message, str):
        raise InvalidSetting(
            f"message={message!r} is not a message of Protobuf",
            next_step="give a generated class, or the full name of a message: message='shop.Order'",
        )
    if descriptors is None:
        raise InvalidSetting(
            f"where message '{message}' is defined is not known",
            next_step="give the generated class, or a file: descriptors='shop.desc' or 'shop.proto'",
        )
    files = _given_files(descriptors)
    return MessageType(files, _chosen(files, message))


def type_in(main: str, files: Iterable[FileDescriptorProto], indexes: Iterable[int]) -> MessageType:
    """The message at a place in the file named `main`; raises InvalidSetting."""
    held = _serialized(files)
    try:
        at = _pool(held).FindFileByName(main)
        names = list(at.message_types_by_name)
        found: Any = None
        for index in indexes:
            found = at.message_types_by_name[names[index]] if found is None else found.nested_types[index]
        return MessageType(held, found.full_name)
    except (IndexError, AttributeError, KeyError):
        raise InvalidSetting(f"{main} has no message at the place {list(indexes)}") from None


def built(files: Iterable[FileDescriptorProto]) -> bytes:
    """The files as bytes, after checking that they fit together; raises InvalidSetting."""
    held = _serialized(files)
    _pool(held)
    return held


def files_of(text: str, name: str, imported: Callable[[str], str | None]) -> list[FileDescriptorProto]:
    """A .proto file and all that it imports, imports first. `imported` has their texts; those of Protobuf are known."""
    found: dict[str, FileDescriptorProto] = {}
    pending: set[str] = set()

    def add(path: str, text: str) -> None:
        if len(found) + len(pending) > IMPORTS_MAX:
            raise InvalidSetting(f"{name} imports more than {IMPORTS_MAX} files")
        pending.add(path)
        try:
            parsed = parsed_proto(text, path)
        except BadProto as error:
            raise InvalidSetting(f"{path} is not a .proto file: {error}") from None
        for other in parsed.dependency:
            if other in found:
                continue
            if other in pending:
                raise InvalidSetting(f"{path} imports {other}, which imports it again")
            if other.startswith(WELL_KNOWN):
                for each in well_known(other):
                    found.setdefault(each.name, each)
                continue
            inside = imported(other)
            if inside is None:
                raise InvalidSetting(f"{path} imports {other}, which cannot be found")
            add(other, inside)
        pending.discard(path)
        found[path] = parsed

    add(name, text)
    return list(found.values())


def well_known(path: str) -> list[FileDescriptorProto]:
    """A file that comes with Protobuf, after its imports."""
    stem = path.removeprefix(WELL_KNOWN).removesuffix(".proto")
    if stem not in _STANDARD and stem != "descriptor":
        raise InvalidSetting(f"Protobuf has no file {path}")
    return _with_imports(_standard_files()[path])


@lru_cache(maxsize=1)
def _standard_files() -> dict[str, FileDescriptor]:
    import importlib

    modules = [importlib.import_module(f"google.protobuf.{stem}_pb2") for stem in (*_STANDARD, "descriptor")]
    return {module.DESCRIPTOR.name: module.DESCRIPTOR for module in modules}


def _given_files(descriptors: Any) -> bytes:
    if isinstance(descriptors, bytes):
        return _checked(descriptors, "descriptors")
    if not isinstance(descriptors, (str, PathLike)):
        raise InvalidSetting(
            f"descriptors={descriptors!r} is not a file",
            next_step="name a descriptor set (protoc --include_imports --descriptor_set_out=FILE) or a .proto file",
        )
    path = Path(descriptors)
    try:
        if path.suffix == ".proto":
            text = path.read_text()
            return built(files_of(text, path.name, lambda other: _beside(path.parent, other)))
        return _checked(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {error.strerror}", next_step="check descriptors=") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"{path} is not text", next_step="a descriptor set must not end in .proto") from None


def _beside(folder: Path, name: str) -> str | None:
    path = folder / name
    return path.read_text() if path.is_file() else None


def _checked(content: bytes, what: str) -> bytes:
    files = FileDescriptorSet()
    try:
        files.ParseFromString(content)
    except Exception:  # the client raises its own DecodeError
        raise InvalidSetting(
            f"{what} is not a descriptor set",
            next_step="write one: protoc --include_imports --descriptor_set_out=FILE …",
        ) from None
    if not files.file:
        raise InvalidSetting(f"{what} has no files")
    held = {each.name for each in files.file}
    missing: dict[str, FileDescriptorProto] = {}
    for each in files.file:
        for other in each.dependency:
            if other not in held and other.startswith(WELL_KNOWN):
                missing |= {found.name: found for found in well_known(other) if found.name not in held}
    return built([*missing.values(), *files.file])


def _chosen(files: bytes, message: str | None) -> str:
    names = [name for name in _messages(files) if not name.startswith("google.protobuf.")]
    if message is None:
        own = [name for name in names if name in _top_level(files)]
        if len(own) == 1:
            return own[0]
        raise InvalidSetting("which message the values have is not known", next_step=_listed(own or names))
    ends = [name for name in names if name == message or name.endswith("." + message)]
    if message in ends or len(ends) == 1:
        return message if message in ends else ends[0]
    raise InvalidSetting(f"there is no message '{message}' in the descriptors", next_step=_listed(names))


def _listed(names: list[str]) -> str:
    return f"name one: message='{names[0]}'; those that exist: {', '.join(names[:20])}" if names else "define one"


def _messages(files: bytes) -> list[str]:
    def inside(prefix: str, message: Any) -> Iterable[str]:
        if message.options.map_entry:
            return
        name = f"{prefix}.{message.name}" if prefix else message.name
        yield name
        for each in message.nested_type:
            yield from inside(name, each)

    return [
        name
        for file in FileDescriptorSet.FromString(files).file
        for message in file.message_type
        for name in inside(file.package, message)
    ]


def _top_level(files: bytes) -> set[str]:
    last = FileDescriptorSet.FromString(files).file[-1]
    return {f"{last.package}.{each.name}" if last.package else each.name for each in last.message_type}


def _serialized(files: Iterable[FileDescriptorProto]) -> bytes:
    held = FileDescriptorSet()
    for each in files:
        held.file.add().CopyFrom(each)
        held.file[-1].ClearField("source_code_info")
    content: bytes = held.SerializeToString(deterministic=True)
    if len(content) > FILES_BYTES_MAX:
        raise InvalidSetting(f"the descriptors have {len(content):,} bytes, more than {FILES_BYTES_MAX:,}")
    return content


def _with_imports(file: FileDescriptor) -> list[FileDescriptorProto]:
    found: dict[str, FileDescriptorProto] = {}

    def add(each: FileDescriptor) -> None:
        if each.name not in found:
            for other in each.dependencies:
                add(other)
            proto = descriptor_pb2.FileDescriptorProto()
            each.CopyToProto(proto)
            found[each.name] = proto

    add(file)
    return list(found.values())


@lru_cache(maxsize=64)
def _pool(files: bytes) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for each in FileDescriptorSet.FromString(files).file:
        try:
            pool.AddSerializedFile(each.SerializeToString())
        except Exception as refusal:  # the files are untrusted, and the client raises anything
            why = valid_text(str(refusal)[:300]).replace("Couldn't build proto file into descriptor pool: ", "")
            raise InvalidSetting(f"{valid_text(each.name)} cannot be used: {why}") from None
    return pool


@lru_cache(maxsize=256)
def _message_class(files: bytes, name: str) -> Any:
    return message_factory.GetMessageClass(_pool(files).FindMessageTypeByName(name))
