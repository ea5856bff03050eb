"""Models that score rows in batches: a function, a model of scikit-learn or of another library like it, or ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.plan.checks import refusal
from millstream.plan.driver_only import check_models
from millstream.plan.stream import Stream
from millstream.records import Schema
from millstream.user_lines import AtUsersLine, users_line, what_exists

SESSIONS_KEPT = 8


@dataclass(frozen=True)
class Onnx:
    """A model as ONNX has it: bytes that hold no code. Its first output is the prediction."""

    content: bytes = field(repr=False)

    def __call__(self, rows: pl.DataFrame) -> Any:
        session = _session(self.content)
        given = {session.get_inputs()[0].name: rows.to_numpy().astype(np.float32)}
        return np.asarray(session.run(None, given)[0]).reshape(len(rows), -1)[:, 0]


@dataclass(frozen=True)
class Estimator:
    """A model with a method `predict` of a matrix, as those of scikit-learn."""

    model: Any

    def __call__(self, rows: pl.DataFrame) -> Any:
        return self.model.predict(rows.to_numpy())


@dataclass(frozen=True)
class Predictor:
    """The function of a batch: it adds the prediction."""

    model: Callable[[pl.DataFrame], Any]
    features: tuple[str, ...]
    into: str
    type: pa.DataType

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        found = self.model(rows.select(self.features))
        made = found if isinstance(found, pl.Series) else pl.Series(np.asarray(found))
        if len(made) != len(rows):
            raise ValueError(f"the model has given {len(made)} predictions for {len(rows)} rows")
        as_asked = pl.Series(pa.array([], self.type)).dtype
        return rows.with_columns(made.cast(as_asked).alias(self.into))


@lru_cache(SESSIONS_KEPT)
def _session(content: bytes) -> Any:
    runtime = _runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # Spark has a task for each core
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _runtime() -> Any:
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise InvalidInput(
            "models in ONNX need the package onnxruntime", next_step="pip install 'millstream[onnx]'"
        ) from None


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
        made = Predictor(_callable(model), names, into, added.field(0).type)
    return stream.map(made, columns.arrow, batch=True, name=name)


def _callable(model: Any) -> Callable[[pl.DataFrame], Any]:
    check_models("predict", model)
    if isinstance(model, str | PathLike | bytes):
        return _onnx(model)
    if callable(getattr(model, "predict", None)):
        return Estimator(model)
    if callable(model):
        found: Callable[[pl.DataFrame], Any] = model
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
    try:
        _session(content)
    except InvalidInput:
        raise
    except Exception as error:  # the library has its own errors
        raise InvalidInput(
            f"that is not a model in ONNX: {str(error).splitlines()[0]}",
            next_step="export it to ONNX; a pickle is not read, since it can run code",
        ) from None
    return Onnx(content)
