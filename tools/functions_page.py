"""The last section of docs/expressions.md: every function of Spark, and where it runs in a flow.

`python tools/functions_page.py` writes it.

The list is Spark's own, so a new version of Spark changes the page, and a test compares it with the running one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.expressions.clock import CLOCKS
from millstream.expressions.functions import FUNCTIONS
from millstream.expressions.lambda_functions import FUNCTIONS as HIGHER_ORDER
from millstream.expressions.refused import ABOUT_MORE_ROWS, DIFFERENT
from millstream.expressions.spark_functions import GENERATORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parent.parent / "docs" / "expressions.md"
TITLE = "## Every function of Spark, and where it runs\n"
GRAMMAR = {
    "!", "!=", "%", "&", "*", "+", "-", "/", "<", "<<", ">>", "<=", "<=>", "<>", "=", "==", ">", ">=", "^",
    "and", "between", "case", "cast", "div", "extract", "ilike", "in", "like", "not", "or", "when", "|", "||", "~",
    "struct", "arrays_zip",
}  # fmt: skip
"""What runs everywhere and has its own syntax, or names its fields after its arguments."""
ROWS = {
    "org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction": "an aggregate",
    "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceableAggregate": "an aggregate",
    "org.apache.spark.sql.catalyst.expressions.WindowFunction": "a window function",
    "org.apache.spark.sql.catalyst.expressions.Generator": "makes several rows",
}
GROUPS = {"agg_funcs": "an aggregate", "window_funcs": "a window function", "generator_funcs": "makes several rows",
          "table_funcs": "makes a table"}  # fmt: skip
TABLES = ("variant_explode", "variant_explode_outer")
REPEATABLE = {name for name, why in DIFFERENT.items() if "repeatable" in why}
BAR = "\\|"
INTRODUCTION = """\
An expression of a flow is Spark SQL. A function that runs **everywhere** has a translation with the same results: it
also runs in tests without Spark, and on Spark inside the task that reads. One that runs **on Spark** needs Spark's own
engine. One that is **refused** looks at more than one row, or would give another result when a batch is done again.

[Functions in expressions](reference/expressions.md) has the arguments of those that run everywhere, and what is special
about them. This list is generated from Spark's own list (`python tools/functions_page.py`), and a test compares them.
"""


def listed(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """Every built-in function: its group in Spark's documentation, and its class."""
    names = sorted(row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect())
    jvm: Any = spark._jvm
    catalog = spark._jsparkSession.sessionState().catalog()
    found = {}
    for name in names:
        info = catalog.lookupFunctionInfo(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
        found[name] = (info.getGroup() or "other", info.getClassName() or "")
    return found


def place(name: str, group: str, kind: str) -> tuple[str, str]:
    """Where a function runs, and why not elsewhere."""
    if name == "localtimestamp":
        return "on Spark", "the clock of the batch"
    if name in FUNCTIONS or name in HIGHER_ORDER or name in GRAMMAR:
        return "everywhere", ""
    if name in CLOCKS:
        return "everywhere", "the clock of the batch"
    if name in GENERATORS:
        return "everywhere", "in a select"
    if kind:
        return "refused", kind
    if group in GROUPS or name in TABLES:
        return "refused", GROUPS.get(group, "makes a table")
    if name in REPEATABLE:
        return "refused", "differs with each call"
    if name in ABOUT_MORE_ROWS:
        return "refused", "windows of time are steps of a flow"
    return "on Spark", ""


def page(spark: SparkSession) -> str:
    """The whole page, with its section made again."""
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()

    def named(name: str) -> Any:
        return jvm.java.lang.Class.forName(name, False, loader)

    kinds = [(named(name), what) for name, what in ROWS.items()]
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for name, (group, class_name) in listed(spark).items():
        made = named(class_name) if class_name else None  # parts of the grammar have none
        kind = next((what for each, what in kinds if made is not None and each.isAssignableFrom(made)), "")
        rows.setdefault(group, []).append((name, *place(name, group, kind)))
    counts = {where: sum(row[1] == where for each in rows.values() for row in each) for where in
              ("everywhere", "on Spark", "refused")}  # fmt: skip
    written = PAGE.read_text().partition(TITLE)[0]
    parts = [written + TITLE, INTRODUCTION]
    parts += [f"Of {sum(counts.values())} functions and operators, {counts['everywhere']} run everywhere, "
             f"{counts['on Spark']} on Spark, and {counts['refused']} are refused.\n"]  # fmt: skip
    for group, each in sorted(rows.items()):
        title = group.removesuffix("_funcs").replace("agg", "aggregate").capitalize()
        parts.append(f"### {title}\n\n| where | functions |\n|---|---|")
        wheres: dict[str, list[str]] = {}
        for name, where, why in each:
            wheres.setdefault(f"{where}: {why}" if why else where, []).append(f"`{name.replace('|', BAR)}`")
        parts += [f"| {where} | {', '.join(names)} |" for where, names in sorted(wheres.items())]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    from millstream.spark import session, stop

    PAGE.write_text(page(session(name="functions")))
    stop()
