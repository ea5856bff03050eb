"""Spark's functions of text, in DuckDB; patterns must be literals, because their rules differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.array_functions import any_null, concatenated, joined
from millstream.expressions.function_entries import (
    BOOLEAN,
    INT,
    LONG,
    STRING,
    Function,
    Lower,
    let,
    literal_of,
    made,
)
from millstream.expressions.lowered import (
    Lowered,
    Refusal,
    cast,
    failing,
    text,
    type_name,
)

PLAIN_TEXT = re.compile(r"[\w/,;:=&@ ~#%<>'\"!-]+")
"""Characters without a special meaning in a pattern."""


def concat(parts: Sequence[Lowered]) -> Lowered:
    if any(part.family == "array" for part in parts):
        return concatenated(parts)
    if any(part.family == "binary" for part in parts):
        raise Refusal("concat of binary values stays binary on Spark", "cast them as string")
    return Lowered(f"({' || '.join(cast(part, STRING).sql for part in parts)})", STRING)


def concat_ws(parts: Sequence[Lowered]) -> Lowered:
    if any(part.family == "array" for part in parts):
        lists = [
            f"coalesce({part.sql}, [])" if part.type == pa.list_(STRING) else f"list_value({cast(part, STRING).sql})"
            for part in parts[1:]
        ]
        return joined([Lowered(f"list_concat({', '.join(lists)}, CAST([] AS VARCHAR[]))", pa.list_(STRING)), parts[0]])
    return Lowered(f"concat_ws({', '.join(cast(part, STRING).sql for part in parts)})", STRING)


def substring(parts: Sequence[Lowered]) -> Lowered:
    """From 1; 0 is 1, and a negative position counts from the end."""
    numbers = [Lowered(f"CAST({part.sql} AS BIGINT)", LONG, part.fails) for part in parts[1:]]

    def body(whole: str, at: str, size: str = "2147483647") -> str:
        start = f"(CASE WHEN {at} > 0 THEN {at} - 1 WHEN {at} < 0 THEN length({whole}) + {at} ELSE 0 END)"
        stop = f"({start} + {size})"
        first = f"greatest({start}, 0)"
        made = f"substring({whole}, {first} + 1, greatest({stop} - {first}, 0))"
        return f"(CASE WHEN {any_null(whole, at, size)} THEN NULL ELSE {made} END)"

    return Lowered(let([parts[0], *numbers], body), STRING)


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


LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"


def regexp_like(parts: Sequence[Lowered]) -> Lowered:
    pattern = _regex(parts[1], "rlike")
    if pattern.endswith("$'") and not pattern.endswith("\\$'"):  # Java's $ also stands before a last line end
        pattern = f"{pattern[:-2]}(?:\\r\\n|[{LINE_ENDS}])?$'"
    return Lowered(f"regexp_matches({parts[0].sql}, {pattern})", BOOLEAN)


def split(parts: Sequence[Lowered]) -> Lowered:
    pattern = _regex(parts[1], "split")
    if pattern == "''":
        raise Refusal("split by an empty pattern", "give the pattern between the parts")
    plain = PLAIN_TEXT.fullmatch(str(parts[1].literal))  # which takes a third of the time
    return Lowered(f"{'string_split' if plain else 'string_split_regex'}({parts[0].sql}, {pattern})", pa.list_(STRING))


def cased(name: str) -> Lower:
    """DuckDB changes single letters; some letters become two, and which one depends on its neighbours."""

    def body(s: str) -> str:
        return f"(CASE WHEN strlen({s}) = length({s}) THEN {name}({s}) ELSE spark_{name}({s}) END)"

    return lambda parts: Lowered(let(parts, body), STRING)


def split_part(parts: Sequence[Lowered]) -> Lowered:
    """From 1, or from the end below 0; an empty separator does not separate."""

    def body(s: str, sign: str, at: str) -> str:
        whole = f"(CASE WHEN abs({at}) = 1 THEN {s} ELSE '' END)"
        made = f"(CASE WHEN {sign} = '' THEN {whole} ELSE split_part({s}, {sign}, {at}) END)"
        given = f"{s} IS NOT NULL AND {sign} IS NOT NULL AND {at} IS NOT NULL"
        return failing(f"{given} AND {at} = 0", "split_part has no part 0", f"(CASE WHEN {given} THEN {made} END)")

    at = Lowered(f"CAST({parts[2].sql} AS BIGINT)", LONG, parts[2].fails)
    return Lowered(let([*parts[:2], at], body), STRING, fails=True)


def substring_index(parts: Sequence[Lowered]) -> Lowered:
    sign = literal_of(parts[1], "substring_index", "separator")
    if any(sign.startswith(sign[at:]) for at in range(1, len(sign))):
        raise Refusal("the separator of substring_index overlaps with itself")
    if not sign:
        raise Refusal("the separator of substring_index is empty")

    def body(s: str, n: str) -> str:
        pieces = f"string_split({s}, {text(sign)})"
        first = f"array_to_string(list_slice({pieces}, 1, {n}), {text(sign)})"
        start = f"greatest(len({pieces}) + {n} + 1, 1)"
        last = f"array_to_string(list_slice({pieces}, {start}, len({pieces})), {text(sign)})"
        return f"(CASE WHEN {any_null(s, n)} THEN NULL WHEN {n} > 0 THEN {first} WHEN {n} < 0 THEN {last} ELSE '' END)"

    return Lowered(let([parts[0], Lowered(f"CAST({parts[2].sql} AS BIGINT)", LONG)], body), STRING)


def binary(part: Lowered, name: str) -> str:
    """The bytes that functions of binary values take; text gives its UTF-8."""
    if part.family == "binary":
        return part.sql
    if part.family == "string":
        return f"encode({part.sql})"
    raise Refusal(f"{name} takes a string or a binary, but got {type_name(part.type)}")


def of_bytes(name: str, template: str, kind: pa.DataType = STRING) -> Function:
    return Function(("any",), lambda parts: Lowered(template.format(binary(parts[0], name)), kind))


def sha2(parts: Sequence[Lowered]) -> Lowered:
    bits = parts[1].literal
    if bits not in (0, 224, 256, 384, 512):
        raise Refusal("sha2 has 224, 256, 384 or 512 bits", "write sha2(…, 256)")
    given = binary(parts[0], "sha2")
    return Lowered(f"sha256({given})" if bits in (0, 256) else f"spark_sha{bits}({given})", STRING)


def unhex(parts: Sequence[Lowered]) -> Lowered:
    fits = "regexp_full_match({0}, '[0-9a-fA-F]*')"
    return Lowered(let(parts, lambda s: f"(CASE WHEN {fits.format(s)} THEN unhex({s}) END)"), pa.binary())


def character(parts: Sequence[Lowered]) -> Lowered:
    made = let(parts, lambda n: f"(CASE WHEN {n} < 0 THEN '' ELSE chr(CAST({n} & 255 AS INTEGER)) END)")
    return Lowered(made, STRING)


def length(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family == "binary":
        return Lowered(f"CAST(octet_length({parts[0].sql}) AS INTEGER)", INT)
    if parts[0].family != "string":
        raise Refusal(f"length takes a string or a binary, but got {type_name(parts[0].type)}", "use cast(… as string)")
    return Lowered(f"CAST(length({parts[0].sql}) AS INTEGER)", INT)


def locate(parts: Sequence[Lowered]) -> Lowered:
    """The position of the first in the second, from 1, at or after the third."""
    if len(parts) == 2:
        return Lowered(f"CAST(instr({parts[1].sql}, {parts[0].sql}) AS INTEGER)", INT)

    def body(wanted: str, s: str, at: str) -> str:
        found = f"instr(substring({s}, {at}), {wanted})"
        made = (
            f"(CASE WHEN {at} < 1 THEN 0 WHEN {wanted} = '' THEN 1 WHEN {at} > length({s}) OR {found} = 0 THEN 0"
            f" ELSE {found} + {at} - 1 END)"
        )
        return f"(CASE WHEN {at} IS NULL THEN 0 WHEN {any_null(wanted, s)} THEN NULL ELSE {made} END)"

    at = Lowered(f"CAST({parts[2].sql} AS BIGINT)", LONG)
    return Lowered(f"CAST({let([*parts[:2], at], body)} AS INTEGER)", INT)


def overlay(parts: Sequence[Lowered]) -> Lowered:
    s, by = parts[:2]
    at = Lowered(f"CAST({parts[2].sql} AS BIGINT)", LONG)
    size = f"CAST({parts[3].sql} AS BIGINT)" if len(parts) == 4 else "-1"
    size = f"(CASE WHEN {size} >= 0 THEN {size} ELSE length({by.sql}) END)"
    before = substring([s, Lowered("CAST(1 AS BIGINT)", LONG), Lowered(f"({at.sql} - 1)", LONG)])
    after = substring([s, Lowered(f"greatest({at.sql} + {size}, -length({s.sql}))", LONG)])
    made = f"({before.sql} || {by.sql} || {after.sql})"
    return Lowered(f"(CASE WHEN {any_null(*(part.sql for part in parts))} THEN NULL ELSE {made} END)", STRING)


def regexp_count(parts: Sequence[Lowered]) -> Lowered:
    found = f"regexp_extract_all({parts[0].sql}, {_consuming(parts[1], 'regexp_count')})"
    return Lowered(f"CAST(len({found}) AS INTEGER)", INT)


def regexp_substr(parts: Sequence[Lowered]) -> Lowered:
    pattern = _consuming(parts[1], "regexp_substr")

    def body(s: str) -> str:
        return f"(CASE WHEN regexp_matches({s}, {pattern}) THEN regexp_extract({s}, {pattern}) END)"

    return Lowered(let(parts[:1], body), STRING)


def _consuming(part: Lowered, name: str) -> str:
    pattern = _regex(part, name)
    if re.match(str(part.literal), ""):
        raise Refusal(f"the pattern of {name} matches empty text")
    return pattern


def elt(parts: Sequence[Lowered]) -> Lowered:
    values = [cast(part, STRING) for part in parts[1:]]
    if not values:
        raise Refusal("elt takes a number and strings")
    cases = " ".join(f"WHEN {at} THEN {value.sql}" for at, value in enumerate(values, 1))
    wrong = f"{parts[0].sql} < 1 OR {parts[0].sql} > {len(values)}"
    return Lowered(failing(wrong, "elt has no such value", f"(CASE {parts[0].sql} {cases} END)"), STRING, fails=True)


def btrim(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"trim({parts[0].sql}, {parts[1].sql if len(parts) == 2 else text(' ')})", STRING)


def replaced(parts: Sequence[Lowered]) -> Lowered:
    """Nothing is replaced if there is nothing to look for."""
    by = parts[2].sql if len(parts) == 3 else "''"
    return Lowered(f"replace({parts[0].sql}, {parts[1].sql}, {by})", STRING)


def find_in_set(parts: Sequence[Lowered]) -> Lowered:
    made = let(
        parts,
        lambda s, t: (
            f"(CASE WHEN {any_null(s, t)} THEN NULL WHEN contains({s}, ',') THEN 0"
            f" ELSE coalesce(list_position(string_split({t}, ','), {s}), 0) END)"
        ),
    )
    return Lowered(f"CAST({made} AS INTEGER)", INT)


def encoded(parts: Sequence[Lowered]) -> Lowered:
    if literal_of(parts[1], "encode", "charset").lower() not in ("utf-8", "utf8"):
        raise Refusal("encode is supported with utf-8")
    return Lowered(f"encode({parts[0].sql})", pa.binary())


BASE64 = r"rtrim(regexp_replace(base64({0}), '(.{{76}})', '\1' || chr(13) || chr(10), 'g'), chr(13) || chr(10))"
"""In lines of 76 characters."""
TEXTS: dict[str, Function] = {
    "length": Function(("any",), length),
    "char_length": Function(("any",), length),
    "character_length": Function(("any",), length),
    "len": Function(("any",), length),
    "octet_length": of_bytes("octet_length", "CAST(octet_length({0}) AS INTEGER)", INT),
    "bit_length": of_bytes("bit_length", "CAST(octet_length({0}) * 8 AS INTEGER)", INT),
    "upper": Function(("string",), cased("upper")),
    "ucase": Function(("string",), cased("upper")),
    "lower": Function(("string",), cased("lower")),
    "lcase": Function(("string",), cased("lower")),
    "initcap": made(STRING, "spark_initcap({0})", "string"),
    "concat": Function(("any",), concat, repeats=True, note="of strings or arrays; null if any is null"),
    "concat_ws": Function(("string", "any"), concat_ws, repeats=True, note="nulls are skipped"),
    "substring": Function(("string", "whole", "whole"), substring, 1, note="from 1; 0 is 1; negative from the end"),
    "substr": Function(("string", "whole", "whole"), substring, 1),
    "left": made(STRING, "CASE WHEN {1} <= 0 AND {0} IS NOT NULL THEN '' WHEN {1} > 0 THEN left({0}, {1}) END",
                 "string", "whole"),
    "right": made(STRING, "CASE WHEN {1} <= 0 AND {0} IS NOT NULL THEN '' WHEN {1} > 0 THEN right({0}, {1}) END",
                  "string", "whole"),
    "lpad": Function(("string", "whole", "string"), padded("lpad"), 1),
    "rpad": Function(("string", "whole", "string"), padded("rpad"), 1),
    "trim": Function(("string",), trimmed("trim"), note="spaces only"),
    "ltrim": Function(("string",), trimmed("ltrim")),
    "rtrim": Function(("string",), trimmed("rtrim")),
    "btrim": Function(("string", "string"), btrim, 1),
    "replace": Function(("string", "string", "string"), replaced, 1),
    "repeat": made(STRING, "repeat({0}, {1})", "string", "whole"),
    "space": made(STRING, "repeat(' ', {0})", "whole"),
    "translate": made(STRING, "translate({0}, {1}, {2})", "string", "string", "string"),
    "overlay": Function(("string", "string", "whole", "whole"), overlay, 1, note="as overlay(s, by, from[, for])"),
    "instr": made(INT, "instr({0}, {1})", "string", "string"),
    "locate": Function(("string", "string", "whole"), locate, 1),
    "position": Function(("string", "string", "whole"), locate, 1),
    "find_in_set": Function(("string", "string"), find_in_set),
    "startswith": made(BOOLEAN, "starts_with({0}, {1})", "string", "string"),
    "endswith": made(BOOLEAN, "ends_with({0}, {1})", "string", "string"),
    "contains": made(BOOLEAN, "contains({0}, {1})", "string", "string"),
    "split": Function(("string", "string"), split, note="by a regular expression; empty parts at the end stay"),
    "split_part": Function(("string", "string", "whole"), split_part),
    "substring_index": Function(("string", "string", "whole"), substring_index),
    "elt": Function(("whole", "any"), elt, repeats=True),
    "regexp_extract": Function(("string", "string", "whole"), regexp_extract, 1, note="default: group 1"),
    "regexp_extract_all": Function(("string", "string", "whole"), regexp_extract_all, 1, note="default: group 1"),
    "regexp_replace": Function(("string", "string", "string"), regexp_replace, note="all matches; groups are $1"),
    "regexp_like": Function(("string", "string"), regexp_like),
    "regexp": Function(("string", "string"), regexp_like),
    "rlike": Function(("string", "string"), regexp_like),
    "regexp_count": Function(("string", "string"), regexp_count),
    "regexp_substr": Function(("string", "string"), regexp_substr),
    "ascii": made(INT, "ascii({0})", "string"),
    "chr": Function(("whole",), character),
    "char": Function(("whole",), character),
    "levenshtein": made(INT, "CASE WHEN strlen({0}) = length({0}) AND strlen({1}) = length({1})"
                        " THEN levenshtein({0}, {1}) ELSE spark_levenshtein({0}, {1}) END", "string", "string"),
    "soundex": made(STRING, "spark_soundex({0})", "string"),
    "base64": of_bytes("base64", BASE64),
    "unhex": Function(("string",), unhex, note="null for what is not hexadecimal"),
    "encode": Function(("string", "string"), encoded, note="utf-8"),
    "md5": of_bytes("md5", "md5({0})"),
    "sha": of_bytes("sha", "sha1({0})"),
    "sha1": of_bytes("sha1", "sha1({0})"),
    "sha2": Function(("any", "whole"), sha2),
    "crc32": of_bytes("crc32", "spark_crc32({0})", LONG),
}  # fmt: skip
