"""Models that score rows in batches: a function, a model of scikit-learn or of another library like it, or ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.plan.checks import refusal
from millstream.plan.models.formats import Model, Onnx, onnx_of
from millstream.plan.models.live_models import predict_live, scored
from millstream.plan.on_spark.driver_only import check_models
from millstream.plan.stream import Stream
from millstream.records import Schema
from millstream.user_lines import AtUsersLine, users_line, what_exists


@dataclass(frozen=True)
class Estimator:
    """A model with a method `predict` of a matrix, as those of scikit-learn."""

    model: Any

    def __call__(self, rows: pl.DataFrame) -> Any:
        return self.model.predict(rows.to_numpy())


@dataclass(frozen=True)
class Predictor:
    """The function of a batch: it adds the prediction."""

    model: Model
    features: tuple[str, ...]
    into: str
    type: pa.DataType

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(scored(self.model, rows.select(self.features), self.type).alias(self.into))


def predict(
    stream: Stream, model: Any, features: str | Sequence[str], into: str, kind: str, name: str | None
) -> Stream:
    names = (features,) if isinstance(features, str) else tuple(features)
    if not names:
        raise refusal("predict needs the columns that the model takes", "predict(model, ['x', 'y'])")
    for each in names:
        if each not in stream.schema.names:
            raise refusal(f"there is no column '{each}'", what_exists(each, stream.schema.names))
    if into.lower() in (column.lower() for column in stream.schema.names):
        raise refusal(f"there is a column '{into}' already", "choose another one: into='score'")
    with AtUsersLine():
        added = Schema.of(f"`{into}` {kind}").arrow
        columns = Schema.from_arrow(pa.schema([*stream.schema.arrow, *added]))
    if hasattr(model, "as_stream"):
        return predict_live(stream, model, names, into, columns, name)
    with AtUsersLine():
        made = Predictor(_callable(model), names, into, added.field(0).type)
    return stream.map(made, columns.arrow, batch=True, name=name)


def _callable(model: Any) -> Model:
    check_models("predict", model)
    if isinstance(model, str | PathLike | bytes):
        return _onnx(model)
    if callable(getattr(model, "predict", None)):
        return Estimator(model)
    if callable(model):
        found: Model = model
        return found
    raise InvalidInput(
        f"{model!r} is not a model",
        where=users_line(),
        next_step="give a function of a polars frame, a model with a method predict, or an ONNX file",
    )


def _onnx(model: str | PathLike[str] | bytes) -> Onnx:
    try:
        content = model if isinstance(model, bytes) else Path(model).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"the model {model!r} cannot be read: {error.strerror}", next_step="give the path of an ONNX file"
        ) from None
    return onnx_of(content)
