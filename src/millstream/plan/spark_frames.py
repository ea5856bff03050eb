"""A DataFrame of Spark as a source, known here only by what it looks like: a plan never imports Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class SparkFrame:
    """It stays in the driver: a plan that travels to the workers only says that there is one."""

    frame: Any = field(repr=False)
    streams: bool
    name: str = "dataframe"

    def __str__(self) -> str:
        return "a DataFrame"

    def __reduce__(self) -> tuple[Any, ...]:
        return SparkFrame, (None, self.streams, self.name)


def as_source(source: Any) -> Any:
    """A DataFrame as a source, anything else as it is."""
    is_frame = any(
        kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.") for kind in type(source).__mro__
    )
    return SparkFrame(source, bool(source.isStreaming)) if is_frame else source


def schema_of(source: SparkFrame) -> str:
    """The columns of a DataFrame, as a schema is written."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in source.frame.schema.fields)
