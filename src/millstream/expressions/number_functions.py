"""Spark's functions of numbers, in DuckDB; those of floating-point numbers may differ in the last digit."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.function_entries import BOOLEAN, DOUBLE, INT, LONG, STRING, Function, Lower, let, made, same
from millstream.expressions.lowered import Lowered, Refusal, divided, failing, together, type_name
from millstream.expressions.spark_types import arithmetic_type, decimal, duckdb_name

LONG_MAX = 2**63 - 1
NAN, INFINITY = "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)"
LAST_DIGIT = "may differ in the last digit"


def _rounded_to_whole(name: str) -> Lower:
    """A bigint, or a decimal; 0 for NaN, and an error for what is too large."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type
        if pa.types.is_decimal(kind):
            result = decimal(kind.precision - kind.scale + 1, 0)
            return Lowered(f"CAST({name}({parts[0].sql}) AS {duckdb_name(result)})", result)
        if pa.types.is_integer(kind):
            return Lowered(f"CAST({parts[0].sql} AS BIGINT)", LONG)
        made = let(parts, lambda x: f"(CASE WHEN isnan({x}) THEN 0 ELSE CAST({name}({x}) AS BIGINT) END)")
        return Lowered(made, LONG, fails=True)

    return lower


def _round(parts: Sequence[Lowered]) -> Lowered:
    """Rounds half away from zero, based on the printed number: 2.675 is 2.68."""
    kind, places = parts[0].type, parts[1].literal if len(parts) == 2 else 0
    if not isinstance(places, int) or not 0 <= places <= 15:
        raise Refusal("the number of places of round must be a literal from 0 to 15")
    if pa.types.is_integer(kind):
        return parts[0]
    if pa.types.is_decimal(kind):
        scale = min(places, kind.scale)
        result = decimal(kind.precision - kind.scale + scale + 1, scale)
        return Lowered(f"CAST(round({parts[0].sql}, {scale}) AS {duckdb_name(result)})", result)

    def body(x: str) -> str:
        exact = f"CAST(CAST(CAST({x} AS DOUBLE) AS VARCHAR) AS DECIMAL(38, 20))"
        small = f"(abs({x}) < 4503599627370496.0)"
        return f"(CASE WHEN {small} THEN CAST(round({exact}, {places}) AS {duckdb_name(kind)}) ELSE {x} END)"

    return Lowered(let(parts[:1], body), kind)


def _remainder(name: str, body: Lower) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        (one, other), kind = together(list(parts), name)
        if pa.types.is_decimal(kind):
            raise Refusal(
                f"the digits of {name} of decimals would differ between the runners", "use %, or cast to double"
            )
        made = let(
            [one, other],
            lambda a, b: divided(Lowered(a, kind), Lowered(b, kind), body([Lowered(a, kind), Lowered(b, kind)]).sql),
        )
        return Lowered(f"CAST({made} AS {duckdb_name(kind)})", kind, fails=True)

    return lower


def _mod(parts: Sequence[Lowered]) -> Lowered:
    one, other = parts
    if pa.types.is_integer(one.type):  # the smallest number by -1 would overflow
        a, b = one.sql, other.sql
        return Lowered(f"(CASE WHEN {b} = -1 THEN {a} - {a} ELSE {a} % {b} END)", one.type)
    return Lowered(f"({one.sql} % {other.sql})", one.type)


def _pmod(parts: Sequence[Lowered]) -> Lowered:
    """A remainder below zero gets the divisor added, and that wraps around as in Java."""
    kind, (one, other) = parts[0].type, parts
    if not pa.types.is_integer(kind):
        rest = f"({one.sql} % {other.sql})"
        return Lowered(f"(CASE WHEN {rest} < 0 THEN ({rest} + {other.sql}) % {other.sql} ELSE {rest} END)", kind)
    bits = 63 if kind == LONG else 31
    wide = "HUGEINT" if kind == LONG else "BIGINT"
    rest = f"(CAST({one.sql} AS {wide}) % {other.sql})"
    total = f"({rest} + {other.sql})"
    wrapped = f"(CASE WHEN {total} < {-(1 << bits)} THEN {total} + CAST({1 << (bits + 1)} AS HUGEINT) ELSE {total} END)"
    return Lowered(f"(CASE WHEN {rest} < 0 THEN {wrapped} % {other.sql} ELSE {rest} END)", kind)


def _logarithm(name: str) -> Function:
    return made(
        DOUBLE, f"CASE WHEN {{0}} > 0 THEN {name}({{0}}) END", "double", note=f"null for 0 and below; {LAST_DIGIT}"
    )


def _log(parts: Sequence[Lowered]) -> Lowered:
    logs = [f"(CASE WHEN {part.sql} > 0 THEN ln({part.sql}) END)" for part in parts]
    return Lowered(logs[0] if len(logs) == 1 else f"({logs[1]} / {logs[0]})", DOUBLE)


def _of_double(sql: str) -> Function:
    return made(DOUBLE, sql, "double", note=LAST_DIGIT)


def _tried(sign: str) -> Lower:
    """try_add and the like: null instead of an error; what fails inside of them still fails."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        name = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}[sign]
        for part in parts:
            if not (pa.types.is_integer(part.type) or pa.types.is_floating(part.type)):
                raise Refusal(f"{name} is supported for whole and floating-point numbers, not {type_name(part.type)}")
        kind = arithmetic_type(sign, parts[0].type, parts[1].type)
        if pa.types.is_floating(kind):
            name = duckdb_name(kind)
            return Lowered(f"(CAST({parts[0].sql} AS {name}) {sign} CAST({parts[1].sql} AS {name}))", kind)
        wide = [f"CAST({part.sql} AS HUGEINT)" for part in parts]
        return Lowered(f"TRY_CAST(({wide[0]} {sign} {wide[1]}) AS {duckdb_name(kind)})", kind)

    return lower


def _try_divide(parts: Sequence[Lowered]) -> Lowered:
    for part in parts:
        if pa.types.is_decimal(part.type):
            raise Refusal("the digits of a decimal division would differ between the runners", "cast it to double")
    made = let(
        [Lowered(f"CAST({part.sql} AS DOUBLE)", DOUBLE) for part in parts],
        lambda a, b: f"(CASE WHEN {b} <> 0 THEN {a} / {b} END)",
    )
    return Lowered(made, DOUBLE)


def _try_mod(parts: Sequence[Lowered]) -> Lowered:
    (one, other), kind = together(list(parts), "try_mod")
    if pa.types.is_decimal(kind):
        raise Refusal("the digits of try_mod of decimals would differ between the runners", "cast them to double")
    body = let(
        [one, other],
        lambda a, b: f"(CASE WHEN {b} <> 0 THEN {_mod([Lowered(a, kind), Lowered(b, kind)]).sql} END)",
    )
    return Lowered(f"CAST({body} AS {duckdb_name(kind)})", kind)


def _nanvl(parts: Sequence[Lowered]) -> Lowered:
    (one, other), kind = together(list(parts), "nanvl")
    if not pa.types.is_floating(kind):
        raise Refusal(f"nanvl takes floating-point numbers, but got {type_name(kind)}")
    return Lowered(let([one, other], lambda a, b: f"(CASE WHEN isnan({a}) THEN {b} ELSE {a} END)"), kind)


def _pow() -> Function:
    """Java's power of 1 and of -1 by infinity or NaN is NaN; C's is 1."""
    return made(
        DOUBLE,
        f"CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN NULL WHEN isnan({{1}}) OR (abs({{0}}) = 1 AND isinf({{1}}))"
        f" THEN {NAN} ELSE pow({{0}}, {{1}}) END",
        "double",
        "double",
        note=LAST_DIGIT,
    )


def _hypot(parts: Sequence[Lowered]) -> Lowered:
    def body(a: str, b: str) -> str:
        most = f"greatest(abs({a}), abs({b}))"
        sides = f"({a} / {most}) * ({a} / {most}) + ({b} / {most}) * ({b} / {most})"
        return (
            f"(CASE WHEN {a} IS NULL OR {b} IS NULL THEN NULL WHEN isinf({a}) OR isinf({b}) THEN {INFINITY}"
            f" WHEN isnan({a}) OR isnan({b}) THEN {NAN} WHEN {most} = 0 THEN 0::DOUBLE ELSE {most} * sqrt({sides}) END)"
        )

    return Lowered(let(parts, body), DOUBLE)


def _width_bucket(parts: Sequence[Lowered]) -> Lowered:
    numbers = [*parts[:3], Lowered(f"CAST({parts[3].sql} AS BIGINT)", LONG)]

    def body(v: str, low: str, high: str, n: str) -> str:
        ends = f"{low} = {high} OR NOT isfinite({low}) OR NOT isfinite({high})"
        none = f"{n} <= 0 OR {n} = {LONG_MAX} OR isnan({v}) OR {ends}"
        up, down = (
            f"(CASE WHEN {v} {before} {low} THEN 0 WHEN {v} {behind} {high} THEN {n} + 1"
            f" ELSE CAST(floor({n} * {part}) AS BIGINT) + 1 END)"
            for before, behind, part in (
                ("<", ">=", f"({v} - {low}) / ({high} - {low})"),
                (">", "<=", f"({low} - {v}) / ({low} - {high})"),
            )
        )
        missing = " OR ".join(f"{each} IS NULL" for each in (v, low, high, n))
        return f"(CASE WHEN {missing} OR {none} THEN NULL WHEN {low} < {high} THEN {up} ELSE {down} END)"

    return Lowered(let(numbers, body), LONG)


def _shifted(name: str) -> Lower:
    """Java takes only the last 5 or 6 bits of the distance."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = LONG if parts[0].type == LONG else INT
        bits = 64 if kind == LONG else 32
        by = Lowered(f"(CAST({parts[1].sql} AS BIGINT) & {bits - 1})", LONG)
        value = Lowered(f"CAST({parts[0].sql} AS HUGEINT)", LONG)
        all_, half = f"{1 << bits}::HUGEINT", f"{1 << (bits - 1)}::HUGEINT"

        def body(x: str, n: str) -> str:
            power = f"CAST(pow(2, {n}) AS HUGEINT)"
            if name == "shiftleft":
                moved = f"((({x} * {power}) % {all_} + {all_}) % {all_})"
            else:
                unsigned = f"(CASE WHEN {x} < 0 THEN {x} + {all_} ELSE {x} END)"
                start = unsigned if name == "shiftrightunsigned" else x
                moved = f"(({start} - (({start} % {power}) + {power}) % {power}) // {power})"
            return f"(CASE WHEN {moved} >= {half} THEN {moved} - {all_} ELSE {moved} END)"

        return Lowered(f"CAST({let([value, by], body)} AS {duckdb_name(kind)})", kind)

    return lower


def _hex(parts: Sequence[Lowered]) -> Lowered:
    if pa.types.is_integer(parts[0].type):
        return Lowered(f"hex(CAST({parts[0].sql} AS BIGINT))", STRING)
    if parts[0].family in ("string", "binary"):
        return Lowered(f"hex({parts[0].sql})", STRING)
    raise Refusal(f"hex takes a whole number, a string or a binary, but got {type_name(parts[0].type)}")


def wide_decimal(part: Lowered, result: pa.DataType) -> Lowered:
    """DuckDB computes with as many digits as its operands have room for: 18, unless one of them has more."""
    if result.precision <= 18 or not pa.types.is_decimal(part.type) or part.type.precision > 18:
        return part
    kind = pa.decimal128(19, part.type.scale)
    return Lowered(f"CAST({part.sql} AS {duckdb_name(kind)})", kind, part.fails)


def _negative(parts: Sequence[Lowered]) -> Lowered:
    kind = duckdb_name(parts[0].type)
    if pa.types.is_integer(parts[0].type):  # DuckDB widens a negated integer; Spark overflows
        return Lowered(f"(CAST(0 AS {kind}) - {parts[0].sql})", parts[0].type, fails=True)
    return Lowered(f"CAST(-({parts[0].sql}) AS {kind})", parts[0].type)


def _bit_get(parts: Sequence[Lowered]) -> Lowered:
    bits = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}[parts[0].type]
    made = let(
        [parts[0], Lowered(f"CAST({parts[1].sql} AS BIGINT)", LONG)],
        lambda x, n: failing(
            f"{x} IS NOT NULL AND ({n} < 0 OR {n} >= {bits})",
            "bit_get outside the number",
            f"(CASE WHEN {x} IS NOT NULL THEN get_bit({x}::BIGINT::BIT, CAST(63 - {n} AS INTEGER)) END)",
        ),
    )
    return Lowered(f"CAST({made} AS TINYINT)", pa.int8(), fails=True)


NUMBERS: dict[str, Function] = {
    "abs": same("abs({0})", "number", fails=True),
    "negative": Function(("number",), _negative),
    "positive": same("{0}", "number"),
    "ceil": Function(("number",), _rounded_to_whole("ceil"), note="a bigint, or a decimal"),
    "ceiling": Function(("number",), _rounded_to_whole("ceil")),
    "floor": Function(("number",), _rounded_to_whole("floor"), note="a bigint, or a decimal"),
    "round": Function(("number", "whole"), _round, 1, note="half away from zero"),
    "rint": made(DOUBLE, "CASE WHEN isfinite({0}) THEN round_even({0}, 0) ELSE {0} END", "double"),
    "mod": Function(("number", "number"), _remainder("mod", _mod)),
    "pmod": Function(("number", "number"), _remainder("pmod", _pmod)),
    "try_add": Function(("number", "number"), _tried("+")),
    "try_subtract": Function(("number", "number"), _tried("-")),
    "try_multiply": Function(("number", "number"), _tried("*")),
    "try_divide": Function(("number", "number"), _try_divide),
    "try_mod": Function(("number", "number"), _try_mod),
    "nanvl": Function(("number", "number"), _nanvl),
    "isnan": made(BOOLEAN, "coalesce(isnan({0}), FALSE)", "double"),
    "factorial": made(LONG, "CASE WHEN {0} BETWEEN 0 AND 20 THEN factorial(CAST({0} AS INTEGER)) END", "whole",
                      note="null outside 0 to 20"),
    "width_bucket": Function(("double", "double", "double", "whole"), _width_bucket),
    "bin": made(STRING, "bin(CAST({0} AS BIGINT))", "whole"),
    "hex": Function(("any",), _hex),
    "bit_count": made(INT, "bit_count(CAST({0} AS BIGINT))", "whole"),
    "bit_get": Function(("whole", "whole"), _bit_get),
    "getbit": Function(("whole", "whole"), _bit_get),
    "shiftleft": Function(("whole", "whole"), _shifted("shiftleft")),
    "shiftright": Function(("whole", "whole"), _shifted("shiftright")),
    "shiftrightunsigned": Function(("whole", "whole"), _shifted("shiftrightunsigned")),
    "sqrt": made(DOUBLE, f"CASE WHEN {{0}} < 0 THEN {NAN} ELSE sqrt({{0}}) END", "double"),
    "cbrt": _of_double("cbrt({0})"),
    "exp": _of_double("exp({0})"),
    "expm1": _of_double(
        "CASE WHEN exp({0}) = 1 THEN {0} WHEN abs({0}) > 1 THEN exp({0}) - 1"
        " ELSE (exp({0}) - 1) * {0} / ln(exp({0})) END"
    ),
    "log1p": _of_double(
        "CASE WHEN {0} <= -1 THEN NULL WHEN 1 + {0} = 1 THEN {0} WHEN abs({0}) > 1 THEN ln(1 + {0})"
        " ELSE ln(1 + {0}) * {0} / ((1 + {0}) - 1) END"
    ),
    "hypot": Function(("double", "double"), _hypot, note=LAST_DIGIT),
    "ln": _logarithm("ln"),
    "log": Function(("double", "double"), _log, 1, note=f"natural, or log(base, x); {LAST_DIGIT}"),
    "log10": _logarithm("log10"),
    "log2": _logarithm("log2"),
    "power": _pow(),
    "pow": _pow(),
    "sign": made(DOUBLE, "CASE WHEN isnan({0}) OR {0} = 0 THEN {0} ELSE sign({0}) END", "double"),
    "signum": made(DOUBLE, "CASE WHEN isnan({0}) OR {0} = 0 THEN {0} ELSE sign({0}) END", "double"),
    "sin": _of_double(f"CASE WHEN isfinite({{0}}) THEN sin({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "cos": _of_double(f"CASE WHEN isfinite({{0}}) THEN cos({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "tan": _of_double(f"CASE WHEN isfinite({{0}}) THEN tan({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "cot": _of_double(f"CASE WHEN isfinite({{0}}) THEN 1 / tan({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "sec": _of_double(f"CASE WHEN isfinite({{0}}) THEN 1 / cos({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "csc": _of_double(f"CASE WHEN isfinite({{0}}) THEN 1 / sin({{0}}) WHEN {{0}} IS NOT NULL THEN {NAN} END"),
    "asin": _of_double(f"CASE WHEN abs({{0}}) > 1 THEN {NAN} ELSE asin({{0}}) END"),
    "acos": _of_double(f"CASE WHEN abs({{0}}) > 1 THEN {NAN} ELSE acos({{0}}) END"),
    "atan": _of_double("atan({0})"),
    "atan2": made(DOUBLE, "atan2({0} + 0::DOUBLE, {1} + 0::DOUBLE)", "double", "double", note=LAST_DIGIT),
    "sinh": _of_double("sinh({0})"),
    "cosh": _of_double("cosh({0})"),
    "tanh": _of_double("tanh({0})"),
    "radians": _of_double("radians({0})"),
    "degrees": _of_double("degrees({0})"),
    "pi": made(DOUBLE, "pi()"),
    "e": made(DOUBLE, "CAST('2.718281828459045' AS DOUBLE)"),
}  # fmt: skip
