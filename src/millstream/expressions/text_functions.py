"""Spark's functions of text, in DuckDB; patterns must be literals, because their rules differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.function_entries import (
    BOOLEAN,
    STRING,
    Lower,
    literal_of,
)
from millstream.expressions.lowered import (
    Lowered,
    Refusal,
    cast,
    text,
)

PLAIN_TEXT = re.compile(r"[\w/,;:=&@ ~#%<>'\"!-]+")
"""Characters without a special meaning in a pattern."""


def concat(parts: Sequence[Lowered]) -> Lowered:
    if any(part.family == "binary" for part in parts):
        raise Refusal("concat of binary values stays binary on Spark", "cast them as string")
    return Lowered(f"({' || '.join(cast(part, STRING).sql for part in parts)})", STRING)


def concat_ws(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"concat_ws({', '.join(cast(part, STRING).sql for part in parts)})", STRING)


def substring(parts: Sequence[Lowered]) -> Lowered:
    """From 1; 0 is 1, and a negative position counts from the end."""
    whole, at = parts[0].sql, f"CAST({parts[1].sql} AS BIGINT)"
    start = f"(CASE WHEN {at} > 0 THEN {at} - 1 WHEN {at} < 0 THEN length({whole}) + {at} ELSE 0 END)"
    if len(parts) == 2:
        return Lowered(f"substring({whole}, greatest({start}, 0) + 1)", STRING)
    stop = f"({start} + CAST({parts[2].sql} AS BIGINT))"
    return Lowered(f"substring({whole}, greatest({start}, 0) + 1, greatest({stop} - greatest({start}, 0), 0))", STRING)


def padded(name: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        whole, size = parts[0].sql, parts[1].sql
        fill = parts[2].sql if len(parts) == 3 else "' '"
        made = f"{name}({whole}, CAST({size} AS INTEGER), {fill})"
        cut = f"substring({whole}, 1, {size})"
        return Lowered(f"(CASE WHEN {size} <= 0 THEN '' WHEN {fill} = '' THEN {cut} ELSE {made} END)", STRING)

    return lower


def trimmed(name: str) -> Lower:
    """Spark's trim removes spaces and no other white space."""
    return lambda parts: Lowered(f"{name}({parts[0].sql}, ' ')", STRING)


def _regex(part: Lowered, name: str) -> str:
    pattern = literal_of(part, name, "pattern")
    if re.search(r"\(\?(?:[=!>]|<[=!])|\\[1-9]|[*+?}]\+|\\[hHRvVXZGkQE]|\[[^\]]*(?:&&|\[[^:])", pattern):
        raise Refusal(
            f"the pattern '{pattern}' uses features of Java's regular expressions that DuckDB does not have",
            "write it without look-around, back-references, possessive quantifiers and class intersections",
        )
    return text(pattern)


def _group(parts: Sequence[Lowered], at: int) -> str:
    if len(parts) <= at:
        return "1"
    number = parts[at].literal
    if not isinstance(number, int) or not 0 <= number <= 9:
        raise Refusal("a group must be a literal number from 0 to 9")
    return str(number)


def regexp_extract(parts: Sequence[Lowered]) -> Lowered:
    pattern, group = _regex(parts[1], "regexp_extract"), _group(parts, 2)
    return Lowered(f"regexp_extract({parts[0].sql}, {pattern}, {group})", STRING)


def regexp_extract_all(parts: Sequence[Lowered]) -> Lowered:
    pattern, group = _regex(parts[1], "regexp_extract_all"), _group(parts, 2)
    return Lowered(f"regexp_extract_all({parts[0].sql}, {pattern}, {group})", pa.list_(STRING))


def regexp_replace(parts: Sequence[Lowered]) -> Lowered:
    """All matches; groups are $1 in Spark and \\1 in DuckDB."""
    pattern, by = _regex(parts[1], "regexp_replace"), literal_of(parts[2], "regexp_replace", "replacement")
    if re.search(r"\\|\$\{|\$\d\d|\$(?!\d)", by):
        raise Refusal(f"the replacement '{by}' has more than text and groups such as $1", "remove the rest")
    by = re.sub(r"\$(\d)", r"\\\1", by)
    return Lowered(f"regexp_replace({parts[0].sql}, {pattern}, {text(by)}, 'g')", STRING)


def regexp_like(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"regexp_matches({parts[0].sql}, {_regex(parts[1], 'rlike')})", BOOLEAN)


def split(parts: Sequence[Lowered]) -> Lowered:
    pattern = _regex(parts[1], "split")
    if pattern == "''":
        raise Refusal("split by an empty pattern", "give the pattern between the parts")
    plain = PLAIN_TEXT.fullmatch(str(parts[1].literal))  # which takes a third of the time
    return Lowered(f"{'string_split' if plain else 'string_split_regex'}({parts[0].sql}, {pattern})", pa.list_(STRING))


def sha2(parts: Sequence[Lowered]) -> Lowered:
    if parts[1].literal not in (0, 256):
        raise Refusal("sha2 is supported with 256 bits", "write sha2(…, 256)")
    return Lowered(f"sha256({parts[0].sql})", STRING)
