"""How a stream is looked at: the first results as a frame, and its plan, columns and rows in a notebook."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, NoReturn

from millstream.plan.on_spark import engine
from millstream.plan.on_spark.hints import Hinted
from millstream.plan.shown.explain import explained
from millstream.plan.shown.html import drawing, page, rows_table, schema_table

if TYPE_CHECKING:
    import polars as pl

    from millstream.plan.flow import Flow
    from millstream.plan.nodes import Node


class Viewed(Hinted):
    """What streams and tables have in common."""

    def __init__(self, flow: Flow, node: Node) -> None:
        self.flow = flow
        self.node = node

    def preview(
        self,
        *,
        rows: int | None = None,
        seconds: float | None = None,
        broker: str | PathLike[str] | None = None,
    ) -> pl.DataFrame:
        """The first `rows` results as a polars DataFrame, 20 by default; of a table, its current rows.

        It reads the sources from the beginning to their current end, for at most ten seconds, and closes every window
        at the end. With `seconds` it reads for that long, also what arrives in the meantime, and returns up to 1,000
        rows by default. Nothing is written: no job, no offsets, no sink. It starts Spark only for steps that need it.
        `broker` is the address of the log, by default the flow's.
        """
        made: pl.DataFrame = engine.call(self, "preview", {"rows": rows, "seconds": seconds, "broker": broker})
        return made

    def _column_hint(self, name: str) -> str | None:
        node: Node | None = self.__dict__.get("node")  # missing while it is copied
        if node is None or name not in node.schema.names:
            return None
        return f"a column is used by its name in an expression: where('{name} is not null')"

    def __getitem__(self, name: object) -> NoReturn:
        self._unknown(str(name))

    def _repr_html_(self) -> str:
        """In a notebook: the plan up to here, the columns, and the rows of the last preview."""
        kind = "table" if self.node.is_table else "stream"
        return page(
            f"{kind} {self.node.name} of the flow {self.flow.name}",
            [
                drawing(explained(self.flow.name, [self.node], "svg")),
                schema_table(self.node.schema),
                *previewed_rows(self.flow, self.node),
            ],
        )


def previewed_rows(flow: Flow, node: Node) -> list[str]:
    """The rows of the last preview of a step, if there was one."""
    rows = flow.previews.get(node)
    return [] if rows is None else [rows_table(rows.columns, rows.to_dicts(), "rows of the last preview")]
