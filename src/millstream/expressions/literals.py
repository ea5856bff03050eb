"""Numbers and type names as Spark's grammar has them."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from millstream.expressions.function_entries import BOOLEAN, DOUBLE, INT, LONG, STRING
from millstream.expressions.lowered import Lowered, Refusal, text
from millstream.expressions.spark_types import INSTANT, duckdb_name

TYPES: dict[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: INT,
    exp.DType.BIGINT: LONG,
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: DOUBLE,
    exp.DType.TEXT: STRING,
    exp.DType.VARCHAR: STRING,
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: INSTANT,
    exp.DType.TIMESTAMPTZ: INSTANT,
    exp.DType.TIMESTAMPLTZ: INSTANT,
}


def number(digits: str) -> Lowered:
    """A number literal as Spark parses it: int, else bigint; decimal with a point; double with an exponent."""
    if re.fullmatch(r"-?[0-9]+", digits):
        value = int(digits)
        for kind, bits in ((INT, 31), (LONG, 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Lowered(f"CAST({value} AS {duckdb_name(kind)})", kind, literal=value)
    if "e" in digits.lower():
        return Lowered(f"CAST({text(digits)} AS DOUBLE)", DOUBLE, literal=float(digits))
    exact = Decimal(digits)
    scale = max(0, -int(exact.as_tuple().exponent))
    precision = max(len(exact.as_tuple().digits), scale)
    if precision > 38:
        raise Refusal(f"the number {digits} has more than 38 digits")
    kind = pa.decimal128(precision, scale)
    return Lowered(f"CAST({text(digits)} AS {duckdb_name(kind)})", kind, literal=exact)


def type_of(node: exp.DataType) -> pa.DataType:
    if node.this == exp.DType.DECIMAL:
        given = [int(part.name) for part in node.expressions]
        precision, scale = (*given, *(10, 0)[len(given) :])
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise Refusal(
                f"there is no decimal({precision}, {scale})",
                "use 1 to 38 digits, and no more decimal places than digits",
            )
        return pa.decimal128(precision, scale)
    if node.this not in TYPES:
        raise Refusal(
            f"a cast to {node.sql(dialect='spark').lower()} is not supported in a flow",
            "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date or timestamp",
        )
    return TYPES[node.this]
