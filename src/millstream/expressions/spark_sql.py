"""Translates Spark's syntax tree to DuckDB's SQL: one `visit_` per kind of node; a node without one is rejected.

sqlglot only parses. Its own translation to DuckDB is not used: where the engines differ it is often valid but wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
from sqlglot import Expr, exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from millstream.expressions.array_functions import ordered
from millstream.expressions.function_entries import BOOLEAN, DOUBLE, LONG, STRING
from millstream.expressions.functions import FUNCTIONS, call, choose, field_of
from millstream.expressions.lambda_functions import FUNCTIONS as HIGHER_ORDER
from millstream.expressions.lambda_functions import higher_order
from millstream.expressions.literals import number, type_of
from millstream.expressions.lowered import (
    NULL,
    Lowered,
    Mistake,
    Refusal,
    Unsure,
    cast,
    divided,
    text,
    together,
    type_name,
    widened,
)
from millstream.expressions.nested_functions import arrays_zip, item, struct_of
from millstream.expressions.number_functions import wide_decimal
from millstream.expressions.refused import ABOUT_MORE_ROWS, DIFFERENT, UNREPEATABLE
from millstream.expressions.spark_functions import GENERATORS, SPARK_FUNCTIONS
from millstream.expressions.spark_types import INSTANT, INTERVAL, arithmetic_type, duckdb_name, family, quoted
from millstream.expressions.text_functions import regexp_like
from millstream.expressions.time_functions import WITH_UNITS, with_unit
from millstream.records import Schema
from millstream.records.variants import VARIANT
from millstream.user_lines import what_exists

INTERVAL_UNITS = ("year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
COMPARISONS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
               exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM"}  # fmt: skip
ORDERS = ("<", "<=", ">", ">=")
SIGNS = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Mod: "%"}
MORE_ROWS = (exp.Window, exp.Subquery, exp.Select, exp.Exists, exp.Filter, exp.Distinct, exp.Union, exp.Star)
NOT_COMPUTED = ("timestamp_ntz", "interval")


class SparkGrammar(Spark):
    """Spark's grammar, without sqlglot's interpretation of functions: their meaning is in `functions.FUNCTIONS`."""

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM")
        }


def lower(tree: Expr, schema: Schema) -> tuple[Lowered, frozenset[str]]:
    """Lowers an expression over the columns of a schema; also returns the columns it uses. Raises Refusal."""
    visitor = _Lowering(schema)
    lowered = visitor.visit(tree, alone=True)
    return lowered, frozenset(visitor.used)


class _Lowering:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.columns = {name.lower(): name for name in schema.names}
        self.used: set[str] = set()
        self.variables: dict[str, Lowered] = {}
        self._names = 0

    def fresh(self) -> str:
        """A name for a parameter of a function, that nothing else in the expression has."""
        self._names += 1
        return f'"x{self._names}"'

    def visit(self, node: Expr, *, alone: bool = False) -> Lowered:
        if isinstance(node, MORE_ROWS):
            with_lambda = isinstance(node, exp.Exists | exp.Filter) and node.find(exp.Select) is None
            raise (Refusal if with_lambda else Mistake)(
                f"{_sql(node)} looks at more than one row",
                "use .agg(…) for aggregates; an expression here is evaluated for one row",
            )
        for kind in type(node).__mro__:
            visit = getattr(self, f"visit_{kind.__name__}", None)
            if visit is not None:
                made: Lowered = visit(node)
                if (
                    made.family in NOT_COMPUTED
                    and made.type != INTERVAL
                    and not (alone and isinstance(node, exp.Column))
                ):
                    raise Refusal(
                        f"{_sql(node)} is {type_name(made.type)}, which can be passed on but not computed with",
                        "read it as another type, or compute in a map(…)",
                    )
                return made
        raise Refusal(f"{_sql(node)} is not supported in a flow", "rewrite it, or use a map(…)")

    def parts(self, *nodes: Expr) -> list[Lowered]:
        return [self.visit(node) for node in nodes]

    # ------------------------------------------------------------ values

    def visit_Column(self, node: exp.Column) -> Lowered:  # noqa: N802
        root, *fields = [part.name for part in node.parts]
        if root.lower() in self.variables:
            return _fields(self.variables[root.lower()], fields)
        known = self.columns.get(root.lower())
        if known is None:
            if root.lower() in DIFFERENT and not fields:
                raise _refused_by_name(root.lower(), f"{root} is not supported", "provide it as a column of the rows")
            raise Mistake(f"there is no column '{root}'", what_exists(root, self.schema.names))
        self.used.add(known)
        kind = self.schema.field(known).type
        if kind == VARIANT:
            raise Refusal(f"the column '{known}' is a variant", "run the flow on Spark")
        return _fields(Lowered(quoted(known), kind), fields)

    def visit_Identifier(self, node: exp.Identifier) -> Lowered:  # noqa: N802
        return self.variables[node.name.lower()]  # the parser only leaves parameters of functions without a column

    def visit_Dot(self, node: exp.Dot) -> Lowered:  # noqa: N802
        if not isinstance(node.expression, exp.Identifier):
            raise Refusal(f"{_sql(node)} is not supported in a flow", "use a map(…)")
        return _field(self.visit(node.this), node.expression.name)

    def visit_Paren(self, node: exp.Paren) -> Lowered:  # noqa: N802
        return self.visit(node.this)

    def visit_Null(self, node: exp.Null) -> Lowered:  # noqa: N802
        return NULL

    def visit_Boolean(self, node: exp.Boolean) -> Lowered:  # noqa: N802
        return Lowered("TRUE" if node.this else "FALSE", BOOLEAN, literal=bool(node.this))

    def visit_Literal(self, node: exp.Literal) -> Lowered:  # noqa: N802
        return Lowered(text(node.this), STRING, literal=node.this) if node.is_string else number(node.this)

    def visit_Neg(self, node: exp.Neg) -> Lowered:  # noqa: N802
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number("-" + node.this.this)
        (part,) = self.parts(node.this)
        _only("number", part, "-")
        return call("negative", [part])

    def visit_Interval(self, node: exp.Interval) -> Lowered:  # noqa: N802
        amount = node.this.name if isinstance(node.this, exp.Literal) else ""
        unit = node.unit.name.lower().removesuffix("s") if isinstance(node.unit, exp.Var) else ""
        whole = re.fullmatch(r"-?[0-9]+" + (r"(\.[0-9]{1,6})?" if unit == "second" else ""), amount)
        if unit not in INTERVAL_UNITS or whole is None:
            raise Refusal(
                f"the interval {_sql(node)} cannot be parsed",
                f"write it as interval '1' hour or interval 1 day 2 hours; units: {', '.join(INTERVAL_UNITS)}",
            )
        return Lowered(f"INTERVAL {text(f'{amount} {unit}s')}", INTERVAL)

    # ------------------------------------------------------------ arithmetic

    def visit_Binary(self, node: exp.Binary) -> Lowered:  # noqa: N802
        if type(node) in COMPARISONS:
            return self._comparison(node, COMPARISONS[type(node)])
        if type(node) in SIGNS:
            return self._arithmetic(node, SIGNS[type(node)])
        raise Refusal(f"{_sql(node)} is not supported in a flow", "rewrite it, or use a map(…)")

    def _arithmetic(self, node: exp.Binary, sign: str) -> Lowered:
        one, other = self.parts(node.left, node.right)
        if INTERVAL in (one.type, other.type) or {one.family, other.family} & {"date", "timestamp"}:
            return _moved(one, other, sign)
        for part in (one, other):
            _only("number", part, sign)
        kind = arithmetic_type(sign, _narrow(one, other), _narrow(other, one))
        left, right = (
            (wide_decimal(one, kind), other)
            if pa.types.is_decimal(kind)
            else (widened(one, kind), widened(other, kind))
        )
        made = f"CAST(({left.sql} {sign} {right.sql}) AS {duckdb_name(kind)})"
        if sign == "%":
            made = divided(left, right, made)
        return Lowered(made, kind, one.fails or other.fails or sign == "%" or not pa.types.is_floating(kind))

    def visit_Div(self, node: exp.Div) -> Lowered:  # noqa: N802
        one, other = self.parts(node.left, node.right)
        for part in (one, other):
            _only("number", part, "/")
        decimals = [part for part in (one, other) if pa.types.is_decimal(part.type)]
        if decimals and not any(pa.types.is_floating(part.type) for part in (one, other)):
            raise Refusal(
                "the digits of a decimal division would differ between the runners", "write cast(… as double) / …"
            )
        left, right = widened(one, DOUBLE), widened(other, DOUBLE)
        return Lowered(divided(left, right, f"({left.sql} / {right.sql})"), DOUBLE, fails=True)

    def visit_IntDiv(self, node: exp.IntDiv) -> Lowered:  # noqa: N802
        one, other = self.parts(node.left, node.right)
        for part in (one, other):
            if not pa.types.is_integer(part.type):
                raise Refusal(f"div is for whole numbers, not {type_name(part.type)}", "cast it, or use /")
        left, right = widened(one, LONG), widened(other, LONG)
        return Lowered(divided(left, right, f"({left.sql} // {right.sql})"), LONG, fails=True)

    def visit_BitwiseAnd(self, node: exp.BitwiseAnd) -> Lowered:  # noqa: N802
        return self._bits(node, "({} & {})")

    def visit_BitwiseOr(self, node: exp.BitwiseOr) -> Lowered:  # noqa: N802
        return self._bits(node, "({} | {})")

    def visit_BitwiseXor(self, node: exp.BitwiseXor) -> Lowered:  # noqa: N802
        return self._bits(node, "xor({}, {})")

    def _bits(self, node: exp.Binary, template: str) -> Lowered:
        (one, other), kind = together(self.parts(node.left, node.right), "a bitwise operator")
        if not pa.types.is_integer(kind):
            raise Refusal(f"bitwise operators are for whole numbers, not {type_name(kind)}")
        return Lowered(template.format(one.sql, other.sql), kind, one.fails or other.fails)

    def visit_BitwiseNot(self, node: exp.BitwiseNot) -> Lowered:  # noqa: N802
        (part,) = self.parts(node.this)
        if not pa.types.is_integer(part.type):
            raise Refusal(f"bitwise operators are for whole numbers, not {type_name(part.type)}")
        return Lowered(f"(~{part.sql})", part.type, part.fails)

    def visit_BitwiseLeftShift(self, node: exp.BitwiseLeftShift) -> Lowered:  # noqa: N802
        return call("shiftleft", self.parts(node.left, node.right))

    def visit_BitwiseRightShift(self, node: exp.BitwiseRightShift) -> Lowered:  # noqa: N802
        return call("shiftright", self.parts(node.left, node.right))

    def visit_DPipe(self, node: exp.DPipe) -> Lowered:  # noqa: N802
        return call("concat", self.parts(node.left, node.right))

    # ------------------------------------------------------------ conditions

    def _comparison(self, node: exp.Binary, sign: str) -> Lowered:
        (one, other), kind = together(self.parts(node.left, node.right), f"'{_sql(node)}'")
        if family(kind) == "map":
            raise Refusal("maps cannot be compared", "compare their keys and values")
        if sign in ORDERS:
            ordered(kind, f"'{_sql(node)}'")
        return Lowered(f"({one.sql} {sign} {other.sql})", BOOLEAN, one.fails or other.fails)

    def visit_Between(self, node: exp.Between) -> Lowered:  # noqa: N802
        (part, low, high), _ = together(self.parts(node.this, node.args["low"], node.args["high"]), "between")
        fails = part.fails or low.fails or high.fails
        return Lowered(f"({part.sql} BETWEEN {low.sql} AND {high.sql})", BOOLEAN, fails)

    def visit_In(self, node: exp.In) -> Lowered:  # noqa: N802
        if not node.expressions:
            raise Mistake(f"{_sql(node)} looks at more than one row", "list the values")
        (part, *values), _ = together(self.parts(node.this, *node.expressions), "in")
        listed = ", ".join(value.sql for value in values)
        return Lowered(f"({part.sql} IN ({listed}))", BOOLEAN, part.fails or any(value.fails for value in values))

    def visit_And(self, node: exp.And) -> Lowered:  # noqa: N802
        return self._joined(node, "AND", "FALSE")

    def visit_Or(self, node: exp.Or) -> Lowered:  # noqa: N802
        return self._joined(node, "OR", "TRUE")

    def _joined(self, node: exp.Binary, word: str, decided: str) -> Lowered:
        one, other = (_condition(part) for part in self.parts(node.left, node.right))
        both = f"({one.sql} {word} {other.sql})"
        if other.fails:  # DuckDB evaluates both sides; Spark the right one only if the left has not decided
            both = f"(CASE WHEN {one.sql} IS {decided} THEN {decided} ELSE {both} END)"
        return Lowered(both, BOOLEAN, one.fails or other.fails)

    def visit_Not(self, node: exp.Not) -> Lowered:  # noqa: N802
        part = _condition(self.visit(node.this))
        return Lowered(f"(NOT {part.sql})", BOOLEAN, part.fails)

    def visit_Is(self, node: exp.Is) -> Lowered:  # noqa: N802
        (part,) = self.parts(node.this)
        if isinstance(node.expression, exp.Null):
            return Lowered(f"({part.sql} IS NULL)", BOOLEAN, part.fails)
        if isinstance(node.expression, exp.Boolean):
            wanted = "TRUE" if node.expression.this else "FALSE"
            return Lowered(f"({_condition(part).sql} IS {wanted})", BOOLEAN, part.fails)
        raise Refusal(f"{_sql(node)} is not supported in a flow", "is null, is true, is false")

    def visit_Like(self, node: exp.Like) -> Lowered:  # noqa: N802
        return self._like(node, "LIKE", "\\")

    def visit_ILike(self, node: exp.ILike) -> Lowered:  # noqa: N802
        return self._like(node, "ILIKE", "\\")

    def visit_Escape(self, node: exp.Escape) -> Lowered:  # noqa: N802
        sign = node.expression.name
        if not isinstance(node.this, exp.Like | exp.ILike) or len(sign) != 1:
            raise Refusal(f"{_sql(node)} cannot be parsed", "like '…' escape '!'")
        return self._like(node.this, "ILIKE" if isinstance(node.this, exp.ILike) else "LIKE", sign)

    def _like(self, node: exp.Binary, word: str, escape: str) -> Lowered:
        one, other = self.parts(node.left, node.right)
        for part in (one, other):
            _only("string", part, word)
        negated = "NOT " if node.args.get("negate") else ""  # a flag of the parser, not an enclosing node
        return Lowered(f"({one.sql} {negated}{word} {other.sql} ESCAPE {text(escape)})", BOOLEAN, fails=True)

    def visit_RegexpLike(self, node: exp.RegexpLike) -> Lowered:  # noqa: N802
        one, other = self.parts(node.this, node.expression)
        _only("string", one, "rlike")
        return regexp_like([one, other])

    def visit_Case(self, node: exp.Case) -> Lowered:  # noqa: N802
        pairs = node.args["ifs"]
        default = node.args.get("default")
        if node.this is None:
            conditions = [_condition(self.visit(pair.this)) for pair in pairs]
        else:
            asked = self.visit(node.this)
            conditions = []
            for pair in pairs:
                (left, right), _ = together([asked, self.visit(pair.this)], "case")
                conditions.append(Lowered(f"({left.sql} = {right.sql})", BOOLEAN, left.fails or right.fails))
        values = [self.visit(pair.args["true"]) for pair in pairs] + [NULL if default is None else self.visit(default)]
        (*chosen, otherwise), kind = together(values, "case")
        branches = " ".join(
            f"WHEN {asked.sql} THEN {value.sql}" for asked, value in zip(conditions, chosen, strict=True)
        )
        fails = any(part.fails for part in (*conditions, *values))
        return Lowered(f"(CASE {branches} ELSE {otherwise.sql} END)", kind, fails)

    def visit_If(self, node: exp.If) -> Lowered:  # noqa: N802
        yes, no = node.args["true"], node.args.get("false")
        return choose(_condition(self.visit(node.this)), self.visit(yes), NULL if no is None else self.visit(no))

    # ------------------------------------------------------------ casts and functions

    def visit_Cast(self, node: exp.Cast) -> Lowered:  # noqa: N802
        return cast(self.visit(node.this), type_of(node.to), safe=bool(node.args.get("safe")))

    def visit_Bracket(self, node: exp.Bracket) -> Lowered:  # noqa: N802
        if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
            raise Mistake(f"{_sql(node)} does not exist in Spark", "put one position or one key in [ ]")
        part, index = self.parts(node.this, node.expressions[0])
        made = item(part, index)
        return Lowered(made.sql, made.type, made.fails or part.fails or index.fails)

    def visit_Extract(self, node: exp.Extract) -> Lowered:  # noqa: N802
        return field_of(node.this.name.lower(), self.visit(node.expression))

    def visit_Trim(self, node: exp.Trim) -> Lowered:  # noqa: N802
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
        part = self.visit(node.this)
        if node.expression is None:
            return call(name, [part])
        signs = self.visit(node.expression)
        for each in (part, signs):
            _only("string", each, "trim")
        return Lowered(f"{name}({part.sql}, {signs.sql})", STRING, part.fails or signs.fails)

    def visit_Anonymous(self, node: exp.Anonymous) -> Lowered:  # noqa: N802
        name = node.name.lower()
        if name in ABOUT_MORE_ROWS:
            kind = Refusal if name in GENERATORS else Mistake
            raise kind(f"{_sql(node)} looks at more than one row", ABOUT_MORE_ROWS[name])
        if name in DIFFERENT:
            raise _refused_by_name(
                name, f"the function {name} is not supported", "provide it as a column, or use a map(…)"
            )
        if name in HIGHER_ORDER:
            return higher_order(name, self, node.expressions)
        if name in ("struct", "arrays_zip"):
            return self._struct(node.expressions) if name == "struct" else self._zipped(node.expressions)
        if name in WITH_UNITS and len(node.expressions) == 3 and isinstance(node.expressions[0], exp.Column):
            return with_unit(name, node.expressions[0].name, self.parts(*node.expressions[1:]))
        if name not in FUNCTIONS:
            if name in SPARK_FUNCTIONS:
                raise Refusal(f"the function {name} runs on Spark alone", "use a map(…)")
            near = what_exists(name, sorted(SPARK_FUNCTIONS)).split("? ")
            hint = f"{near[0]}? or " if len(near) == 2 else ""
            raise Unsure(f"there is no function {name}", f"{hint}use a map(…)")
        given = node.expressions
        if name == "position" and len(given) == 1 and isinstance(given[0], exp.In) and given[0].args.get("field"):
            given = [given[0].this, given[0].args["field"]]
        return call(name, self.parts(*given))

    def visit_Concat(self, node: exp.Concat) -> Lowered:  # noqa: N802
        raise Mistake(
            "two string literals are next to each other",
            r"write a quote in a string as \'; to concatenate strings use ||",
        )

    def visit_Transform(self, node: Expr) -> Lowered:  # noqa: N802
        return higher_order("transform", self, [each for each in (node.this, node.expression) if each is not None])

    def _struct(self, nodes: list[Expr]) -> Lowered:
        fields = []
        for at, node in enumerate(nodes, 1):
            named = node.alias if isinstance(node, exp.Alias) else _name(node)
            fields.append((named or f"col{at}", self.visit(node.this if isinstance(node, exp.Alias) else node)))
        return struct_of(fields)

    def _zipped(self, nodes: list[Expr]) -> Lowered:
        return arrays_zip([(_name(node) or str(at), self.visit(node)) for at, node in enumerate(nodes)])

    def visit_Alias(self, node: exp.Alias) -> Lowered:  # noqa: N802
        raise Mistake(f"'{_sql(node)}' names its result", "give the name before the expression: name='…'")


def _refused_by_name(name: str, what: str, next_step: str) -> Refusal:
    """What differs with each call is refused everywhere; for the rest Spark can be asked."""
    kind = Mistake if name in UNREPEATABLE else Refusal
    return kind(f"{what}: {DIFFERENT[name]}", next_step)


def _name(node: Expr) -> str:
    """What Spark calls a field made of it, or nothing."""
    if isinstance(node, exp.Dot):
        node = node.expression
    return node.name if isinstance(node, exp.Column | exp.Identifier) else ""


def _sql(node: Expr) -> str:
    shown = node.sql(dialect="spark")
    return shown if len(shown) <= 60 else shown[:60] + "…"


def _narrow(part: Lowered, other: Lowered) -> pa.DataType:
    """Next to a decimal, an integer literal only needs its own digits."""
    if pa.types.is_decimal(other.type) and pa.types.is_integer(part.type) and isinstance(part.literal, int):
        return pa.decimal128(len(str(abs(part.literal))), 0)
    return part.type


def _moved(one: Lowered, other: Lowered, sign: str) -> Lowered:
    """A timestamp plus or minus an interval; sums of intervals."""
    fails = one.fails or other.fails
    if sign in "+-" and one.type == INTERVAL == other.type:
        return Lowered(f"({one.sql} {sign} {other.sql})", INTERVAL, fails)
    if sign == "+" and one.type == INTERVAL:
        one, other = other, one
    if sign in "+-" and one.family == "timestamp" and other.type == INTERVAL:
        return Lowered(f"({one.sql} {sign} {other.sql})", INSTANT, fails)
    if sign in "+-" and one.family == "date" and pa.types.is_integer(other.type):
        return Lowered(f"({one.sql} {sign} CAST({other.sql} AS INTEGER))", one.type, fails)
    hints = {
        ("timestamp", "timestamp"): "use unix_micros(…) - unix_micros(…)",
        ("date", "date"): "use datediff(…, …)",
        ("date", "interval"): "use date_add(…, days), or cast the date as timestamp",
    }
    raise Refusal(
        f"{type_name(one.type)} {sign} {type_name(other.type)} is not supported in a flow",
        hints.get((one.family, other.family), "add an interval to a timestamp: at + interval 1 hour"),
    )


def _only(wanted: str, part: Lowered, what: str) -> None:
    if part.family != wanted:
        raise Refusal(f"{what} takes a {wanted}, but got {type_name(part.type)}", "convert it with cast(… as …)")


def _condition(part: Lowered) -> Lowered:
    if part.family == "null":
        return Lowered("CAST(NULL AS BOOLEAN)", BOOLEAN)
    if part.family != "boolean":
        raise Refusal(
            f"a condition must be true or false, but this is {type_name(part.type)}", "compare it with something"
        )
    return part


def _fields(part: Lowered, names: list[str]) -> Lowered:
    for name in names:
        part = _field(part, name)
    return part


def _field(part: Lowered, name: str) -> Lowered:
    if part.family == "map":
        return item(part, Lowered(text(name), STRING, literal=name))
    if part.family != "struct":
        raise Refusal(f"{type_name(part.type)} has no field '{name}'", "only a struct has fields")
    fields = {field.name.lower(): field for field in part.type}
    if name.lower() not in fields:
        raise Mistake(
            f"there is no field '{name}'", what_exists(name, [field.name for field in part.type], kind="fields")
        )
    field = fields[name.lower()]
    return Lowered(f"struct_extract({part.sql}, {text(field.name)})", field.type, part.fails)
