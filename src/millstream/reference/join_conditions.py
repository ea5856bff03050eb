"""The condition of a join, asked for one pair of rows at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.expressions.expression import evaluate
from millstream.plan.table_nodes import Join
from millstream.reference.tables import frozen

Values = dict[str, Any]


class Condition:
    """Whether rows with equal keys match. A pair is evaluated once."""

    def __init__(self, node: Join) -> None:
        self._node = node
        self._known: dict[Any, bool] = {}

    def holds(self, left: Values, right: Values) -> bool:
        condition = self._node.condition
        if condition is None:
            return True
        sides = zip(self._node.compared, (left, right), strict=True)
        pair = {name: values[column] for columns, values in sides for name, column in columns}
        asked = frozen(pair)
        if asked not in self._known:
            row = pa.Table.from_pylist([pair], schema=condition.columns)
            found = evaluate({"holds": condition.holds.lowered}, row).column("holds")[0].as_py()
            self._known[asked] = found is True
        return self._known[asked]
