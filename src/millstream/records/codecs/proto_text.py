"""Reads .proto files of proto2 and proto3 into descriptors. Names of types are resolved later, by Protobuf itself.

Options, services, extensions and reserved numbers do not change how values are read; they are skipped. The texts come
from a schema registry and are untrusted: the parser does not recurse deeper than NESTING_MAX.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

NESTING_MAX = 50
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/            # blanks and comments
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>\.?[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)
    |(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<mark>[{}\[\]()<>;=,.+:/-])""",
    re.VERBOSE | re.DOTALL,
)
_LABELS = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
SIMPLE_TYPES = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    )
}
_SKIPPED = ("option", "reserved", "extensions", "service", "extend")


class BadProto(Exception):
    """A text that is not a .proto file; the message has the line."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def parsed_proto(text: str, name: str) -> FileDescriptorProto:
    """The descriptor of a .proto file; raises BadProto."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._file = FileDescriptorProto(name=name)
        self._proto3 = False

    def file(self) -> FileDescriptorProto:
        file = self._file
        while (token := self._peek()).kind != "end":
            if self._takes(";"):
                continue
            match token.text:
                case "syntax":
                    self._next()
                    self._expect("=")
                    file.syntax = self._text()
                    self._proto3 = file.syntax == "proto3"
                    if file.syntax not in ("proto2", "proto3"):
                        raise self._bad(f"syntax '{file.syntax}' is not supported", token)
                    self._expect(";")
                case "edition":
                    raise self._bad("editions are not supported; use a descriptor set", token)
                case "import":
                    self._import()
                case "package":
                    self._next()
                    file.package = self._word()
                    self._expect(";")
                case "message":
                    self._message(file.message_type.add(), 0)
                case "enum":
                    self._enum(file.enum_type.add())
                case word if word in _SKIPPED:
                    self._skip_statement()
                case _:
                    raise self._bad(f"'{token.text}' is not expected here", token)
        if not self._proto3:
            file.ClearField("syntax")  # as protoc writes it
        return file

    def _import(self) -> None:
        self._next()
        if self._peek().text in ("public", "weak") and self._next().text == "public":
            self._file.public_dependency.append(len(self._file.dependency))
        self._file.dependency.append(self._text())
        self._expect(";")

    def _message(self, message: DescriptorProto, depth: int) -> None:
        begin = self._next()
        if depth > NESTING_MAX:
            raise self._bad("messages are nested too deeply", begin)
        message.name = self._word()
        self._expect("{")
        optionals: list[FieldDescriptorProto] = []
        while not self._takes("}"):
            token = self._peek()
            if self._takes(";"):
                continue
            is_field = self._peek(1).kind == "word" or self._peek(1).text == "<"
            if token.text == "message" and self._peek(2).text == "{":
                self._message(message.nested_type.add(), depth + 1)
            elif token.text == "enum" and self._peek(2).text == "{":
                self._enum(message.enum_type.add())
            elif token.text == "oneof" and self._peek(2).text == "{":
                self._oneof(message)
            elif token.text in _SKIPPED and not (is_field and self._peek(2).text == "="):
                self._skip_statement()
            else:
                field = self._field(message)
                if self._proto3 and field.proto3_optional:
                    optionals.append(field)
        mark_optional(message, optionals)

    def _oneof(self, message: DescriptorProto) -> None:
        self._next()
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._word())
        self._expect("{")
        while not self._takes("}"):
            if self._takes(";"):
                continue
            if self._peek().text == "option":
                self._skip_statement()
                continue
            self._field(message).oneof_index = index

    def _field(self, message: DescriptorProto) -> FieldDescriptorProto:
        token = self._peek()
        field = FieldDescriptorProto(label=FieldDescriptorProto.LABEL_OPTIONAL)
        if token.text in _LABELS and self._peek(1).text not in ("=",):
            field.label = _LABELS[self._next().text]
            if token.text == "optional" and self._proto3:
                field.proto3_optional = True
        if self._peek().text == "group":
            raise self._bad("groups are not supported; use a descriptor set", token)
        if self._peek().text == "map" and self._peek(1).text == "<":
            entry = self._map_entry(message)
            field.label = FieldDescriptorProto.LABEL_REPEATED
            field.name = self._word()
            entry.name = f"{camel(field.name)}Entry"
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, entry.name
        else:
            self._type(field)
            field.name = self._word()
        self._expect("=")
        field.number = self._integer()
        self._field_options(field)
        self._expect(";")
        added = message.field.add()
        added.CopyFrom(field)
        return added

    def _map_entry(self, message: DescriptorProto) -> DescriptorProto:
        self._next()
        self._expect("<")
        entry = message.nested_type.add()
        entry.options.map_entry = True
        for number, (name, end) in enumerate((("key", ","), ("value", ">")), 1):
            part = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._type(part)
            self._expect(end)
        return entry

    def _type(self, field: FieldDescriptorProto) -> None:
        name = self._word()
        if name in SIMPLE_TYPES:
            field.type = SIMPLE_TYPES[name]
        else:
            field.type_name = name  # a message or an enum: Protobuf finds out which

    def _field_options(self, field: FieldDescriptorProto) -> None:
        if not self._takes("["):
            return
        while True:
            name = self._option_name()
            self._expect("=")
            value = self._constant()
            if name == "packed":
                field.options.packed = value == "true"
            elif name == "default":
                field.default_value = value
            if self._takes("]"):
                return
            self._expect(",")

    def _option_name(self) -> str:
        parts = []
        while self._peek().text not in ("=", "", "]", ";"):
            parts.append(self._next().text)
        return "".join(parts)

    def _constant(self) -> str:
        if self._peek().text == "{":
            self._skip_block("{", "}")
            return ""
        if self._peek().text == "[":
            self._skip_block("[", "]")
            return ""
        sign = "-" if self._takes("-") else ""
        self._takes("+")
        if self._peek().kind == "text":
            return self._text()
        return sign + self._next().text

    def _enum(self, enum: EnumDescriptorProto) -> None:
        self._next()
        enum.name = self._word()
        self._expect("{")
        while not self._takes("}"):
            if self._takes(";"):
                continue
            token = self._peek()
            if token.text in ("option", "reserved") and self._peek(1).text != "=":
                if token.text == "option" and self._peek(1).text == "allow_alias":
                    enum.options.allow_alias = self._peek(3).text == "true"
                self._skip_statement()
                continue
            value = enum.value.add(name=self._word())
            self._expect("=")
            value.number = self._integer()
            self._field_options(FieldDescriptorProto())
            self._expect(";")

    # ------------------------------------------------------------ tokens

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> _Token:
        token = self._peek()
        if token.kind == "end":
            raise self._bad("the file ends too early", token)
        self._at += 1
        return token

    def _takes(self, mark: str) -> bool:
        if self._peek().kind == "end":
            raise self._bad("the file ends too early", self._peek())
        if self._peek().kind == "mark" and self._peek().text == mark:
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        token = self._peek()
        if token.kind != "mark" or token.text != mark:
            raise self._bad(f"expected '{mark}', found '{token.text}'", token)
        self._at += 1

    def _word(self) -> str:
        token = self._next()
        if token.kind != "word":
            raise self._bad(f"expected a name, found '{token.text}'", token)
        return token.text

    def _text(self) -> str:
        token = self._peek()
        parts = []
        while self._peek().kind == "text":
            try:
                parts.append(str(ast.literal_eval(self._next().text)))
            except (ValueError, SyntaxError):
                raise self._bad(f"{token.text} is not a text", token) from None
        if not parts:
            raise self._bad(f"expected a text, found '{token.text}'", token)
        return "".join(parts)

    def _integer(self) -> int:
        sign = -1 if self._takes("-") else 1
        token = self._next()
        try:
            digits = token.text
            is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
            found = sign * int(digits, 8 if is_octal else 0)
        except ValueError:
            raise self._bad(f"expected a number, found '{token.text}'", token) from None
        if not -(2**31) <= found < 2**31:
            raise self._bad(f"the number {token.text} is out of range", token)
        return found

    def _skip_statement(self) -> None:
        """To the semicolon, or over the block."""
        while True:
            if self._takes(";"):
                return
            if self._peek().text == "[":
                self._skip_block("[", "]")
                continue
            if self._peek().text == "{":
                self._skip_block("{", "}")
                if self._peek().kind != "end":
                    self._takes(";")
                return
            self._next()

    def _skip_block(self, begin: str, end: str) -> None:
        depth = 0
        while True:
            token = self._next()
            if token.kind == "mark":
                depth += (token.text == begin) - (token.text == end)
            if not depth:
                return

    def _bad(self, what: str, token: _Token) -> BadProto:
        return BadProto(f"line {token.line}: {what}")


def mark_optional(message: DescriptorProto, fields: Iterable[FieldDescriptorProto]) -> None:
    """An optional field of proto3 is alone in a oneof; these come after the others, under names that are free."""
    taken = {each.name for each in (*message.field, *message.oneof_decl, *message.nested_type, *message.enum_type)}
    for field in fields:
        name = f"_{field.name}"
        while name in taken:
            name = f"X{name}"
        taken.add(name)
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=name)


def camel(name: str) -> str:
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return found if found[:1].isalpha() else f"Field{found}"


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, line = 0, 1
    while at < len(text):
        match: Any = _TOKEN.match(text, at)
        if match is None:
            raise BadProto(f"line {line}: {text[at : at + 20]!r} is not expected here")
        if match.lastgroup:
            found.append(_Token(match.lastgroup, match[0], line))
        line += match[0].count("\n")
        at = match.end()
    found.append(_Token("end", "", line))
    return found
