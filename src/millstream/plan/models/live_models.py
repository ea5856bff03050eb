"""A step that scores rows with the newest model of a stream of models, which changes while the job runs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.plan.checks import check_stream, refusal
from millstream.plan.flow import Flow
from millstream.plan.models.formats import Model
from millstream.plan.nodes import PredictLive
from millstream.plan.stream import Stream
from millstream.records import Schema
from millstream.user_lines import users_line

FORMAT, CONTENT = "format", "content"
"""The columns of a stream of models."""


class Models(Protocol):
    """Models outside of a flow, such as those of `ms.models(…)`."""

    def as_stream(self, flow: Flow) -> Stream:
        """The models as a stream of a flow, with the columns FORMAT and CONTENT."""


def predict_live(
    stream: Stream, models: Models, features: tuple[str, ...], into: str, columns: Schema, name: str | None
) -> Stream:
    check_stream(stream, "predict(ms.models(…))", "models are applied to the rows of a stream")
    if stream.node.is_changing:
        raise refusal(
            f"rows of '{stream.node.name}' may be retracted, and the model may have changed by then",
            "use .discarding() or .accumulating() in the aggregation before",
        )
    sent = models.as_stream(stream.flow)
    node = PredictLive("", columns, (stream.node, sent.node), users_line(), features, into)
    return stream._next(stream.flow.named(node, "predict", name))


def scored(model: Model, rows: pl.DataFrame, kind: Any) -> pl.Series:
    """The predictions for rows of features."""
    found = model(rows)
    made = found if isinstance(found, pl.Series) else pl.Series(np.asarray(found))
    if len(made) != len(rows):
        raise ValueError(f"the model has given {len(made)} predictions for {len(rows)} rows")
    return made.cast(pl.Series(pa.array([], kind)).dtype)
