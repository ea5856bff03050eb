"""A Spark DataFrame as a source, recognized by its attributes: a plan never imports Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from millstream.errors import InvalidSchema
from millstream.expressions.spark_types import instead_of
from millstream.plan.endpoints import Endpoint
from millstream.records import Schema
from millstream.user_lines import users_line


@dataclass(frozen=True, eq=False)
class SparkFrame(Endpoint):
    """The frame stays in the driver: the plan that is shipped to workers does not contain it."""

    frame: Any = field(repr=False)
    streams: bool
    can_read: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "dataframe"

    def own_schema(self, broker: str | None) -> Schema:
        kinds = {field.name: field.dataType.simpleString() for field in self.frame.schema.fields}
        for name, kind in kinds.items():
            try:
                Schema.of(f"`{name}` {kind}")
            except InvalidSchema as error:
                if "type" not in error.what and "interval" not in error.what:
                    raise
                raise InvalidSchema(
                    f"the column '{name}' of the DataFrame is {kind}, which a column of a stream cannot be",
                    where=users_line(),
                    next_step=f"in the DataFrame, {instead_of(kind, name)}",
                ) from None
        return Schema.of(", ".join(f"`{name}` {kind}" for name, kind in kinds.items()))

    def __str__(self) -> str:
        return "a DataFrame"

    def __reduce__(self) -> tuple[Any, ...]:
        return SparkFrame, (None, self.streams)


def as_source(source: Any) -> Any:
    """A DataFrame as a source, anything else as it is."""
    is_frame = any(
        kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.") for kind in type(source).__mro__
    )
    return SparkFrame(source, bool(source.isStreaming)) if is_frame else source
