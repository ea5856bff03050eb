"""A text value is matched as a whole by a pattern, whose named groups are the columns.

Patterns are Python's, with one addition, as in grok: `%{NUMBER:latency}` is a group named `latency` with a known
pattern, and `%{NUMBER:latency:double}` also gives its type. A group that takes no part in a match, or is
empty, is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from millstream.errors import InvalidRecord, InvalidSchema, InvalidSetting
from millstream.records.codecs.base import Codec
from millstream.records.codecs.csv import CsvRules
from millstream.records.columns import Faults, Rules
from millstream.records.ranges import shortened
from millstream.records.schema import Schema, SchemaLike

PATTERNS = {
    "WORD": r"\w+",
    "NOTSPACE": r"\S+",
    "INT": r"[+-]?\d+",
    "POSINT": r"[1-9]\d*",
    "NUMBER": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?",
    "IP": r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)",
    "HOSTNAME": r"[A-Za-z0-9][A-Za-z0-9.-]*",
    "IPORHOST": r"(?:[0-9A-Fa-f]*:[0-9A-Fa-f:.]+|[A-Za-z0-9][A-Za-z0-9.-]*)",
    "USER": r"[\w.-]+",
    "EMAILADDRESS": r"[\w.+-]+@[A-Za-z0-9][A-Za-z0-9.-]*",
    "MAC": r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}",
    "UUID": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "TIMESTAMP_ISO8601": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?",
    "HTTPDATE": r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}",
    "SYSLOGTIMESTAMP": r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d",
    "LOGLEVEL": r"(?i:trace|debug|info|notice|warn(?:ing)?|error|critical|fatal|severe|alert)",
    "QUOTEDSTRING": r'"(?:[^"\\]|\\.)*"',
    "PATH": r"/\S*",
    "URIPATH": r"/[^\s?#]*",
    "URI": r"[A-Za-z][A-Za-z0-9+.-]*://\S+",
    "SPACE": r"\s*",
    "DATA": r".*?",
    "GREEDYDATA": r".*",
}
"""The names that may stand in %{NAME:column}: the most used ones of grok."""
COMPOSED = {
    "COMMONAPACHELOG": r"%{IPORHOST:clientip} %{NOTSPACE:ident} %{NOTSPACE:auth} \[%{HTTPDATE:timestamp}\] "
    r'"(?:%{WORD:verb} %{NOTSPACE:request}(?: HTTP/%{NUMBER:httpversion})?|%{DATA:rawrequest})" '
    r"%{INT:response:int} (?:%{INT:bytes:bigint}|-)",
}
COMPOSED["COMBINEDAPACHELOG"] = COMPOSED["COMMONAPACHELOG"] + r' "%{DATA:referrer}" "%{DATA:agent}"'
TYPES = {"float": "double", "long": "bigint"}
"""Types of grok that mean others here."""
_NAMED = re.compile(r"%\{(\w+)(?::(\w+))?(?::([\w(), ]+))?\}")


@dataclass(frozen=True)
class RegexCodec(Codec):
    """Only reads: a row cannot be turned into text again."""

    pattern: str
    name: ClassVar[str] = "regex"

    def _encoded(self, rows: pa.RecordBatch) -> list[bytes]:
        raise InvalidRecord("the format 'regex' can only be read", next_step="write 'json' or 'csv'")

    def _rules(self) -> Rules:
        return CsvRules()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        pattern, names = compiled(self.pattern), self.schema.names
        columns: list[list[str | None]] = [[] for _ in names]
        for index, value in enumerate(values):
            found: re.Match[str] | None = None
            try:
                text = value.decode()
                found = pattern.fullmatch(text)
                if found is None:
                    faults[index] = f"the pattern does not match '{shortened(text)}'"
            except UnicodeDecodeError as bad:
                faults[index] = f"not valid UTF-8 at byte {bad.start}"
            for column, name in zip(columns, names, strict=True):
                column.append(None if found is None else found[name] or None)
        return columns


def regex_codec(pattern: str, schema: SchemaLike | None) -> RegexCodec:
    """The codec of a pattern; without a schema, a named group has the type in it, or is a string."""
    groups = list(compiled(pattern).groupindex)
    if not groups:
        raise InvalidSetting(
            f"the pattern '{pattern}' has no named groups", next_step="name them: (?P<user>\\w+), or %{WORD:user}"
        )
    columns = Schema.of(_schema_of(pattern, groups) if schema is None else schema)
    for column in columns.arrow:
        if column.name not in groups:
            raise InvalidSchema(
                f"the pattern has no group named '{column.name}'", next_step=f"named groups: {', '.join(groups)}"
            )
        if pa.types.is_nested(column.type):
            raise InvalidSchema(f"column '{column.name}' cannot be read from a text", next_step="use a simple type")
    return RegexCodec(columns, pattern)


def _schema_of(pattern: str, groups: Iterable[str]) -> str:
    types = {column: TYPES.get(kind, kind) for _, column, kind in _NAMED.findall(_expanded(pattern)) if kind}
    return ", ".join(f"`{name}` {types.get(name, 'string')}" for name in groups)


@lru_cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern with its named ones filled in."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidSetting(f"a pattern is text, not {pattern!r}", next_step="pattern=r'(?P<user>\\w+) .*'")
    try:
        return re.compile(_NAMED.sub(_filled, _expanded(pattern)), re.DOTALL)
    except re.error as error:
        raise InvalidSetting(
            f"'{pattern}' is not a regular expression: {error}", next_step="see Python's re module for its syntax"
        ) from None


def _expanded(pattern: str) -> str:
    """A pattern with the composed ones filled in: they have columns of their own."""
    return _NAMED.sub(lambda found: COMPOSED.get(found[1], found[0]), pattern)


def _filled(found: re.Match[str]) -> str:
    name, column, _ = found.groups()
    if name not in PATTERNS:
        raise InvalidSetting(
            f"there is no pattern '{name}'", next_step=f"those that exist: {', '.join([*PATTERNS, *COMPOSED])}"
        )
    return f"(?P<{column}>{PATTERNS[name]})" if column else f"(?:{PATTERNS[name]})"
