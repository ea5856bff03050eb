"""Models as bytes that hold no code: ONNX, or coefficients as JSON. A pickle is refused, since it can run code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from millstream.errors import InvalidInput

SESSIONS_KEPT = 8
ONNX, COEFFICIENTS = "onnx", "coefficients"
LINKS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda sums: sums,
    "logistic": lambda sums: 1 / (1 + np.exp(-np.clip(sums, -700, 700))),
}
EXAMPLE = '{"coefficients": [0.5, -1.2], "intercept": 3.0, "link": "logistic"}'

Model = Callable[[pl.DataFrame], Any]
"""Takes the features of rows, in order, and returns a prediction for each row."""


@dataclass(frozen=True)
class Onnx:
    """A model as ONNX has it. Its first output is the prediction."""

    content: bytes

    def __call__(self, rows: pl.DataFrame) -> Any:
        session = _session(self.content)
        given = {session.get_inputs()[0].name: rows.to_numpy().astype(np.float32)}
        return np.asarray(session.run(None, given)[0]).reshape(len(rows), -1)[:, 0]


@dataclass(frozen=True)
class Linear:
    """A weighted sum of the features, and a link function of it: a linear or a logistic regression."""

    coefficients: tuple[float, ...]
    intercept: float
    link: str

    def __call__(self, rows: pl.DataFrame) -> Any:
        if rows.width != len(self.coefficients):
            raise ValueError(f"the model has {len(self.coefficients)} coefficients for {rows.width} features")
        return LINKS[self.link](rows.to_numpy().astype(np.float64) @ np.array(self.coefficients) + self.intercept)


def onnx_of(content: bytes) -> Onnx:
    """Refuses bytes that are no model in ONNX."""
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


@lru_cache(SESSIONS_KEPT)
def model_of(format: str | None, content: bytes | None) -> Model:
    """The model of a topic; refuses what is none."""
    if format == ONNX and content:
        return onnx_of(content)
    if format == COEFFICIENTS and content:
        try:
            return linear_of(json.loads(content))
        except (ValueError, RecursionError):
            pass
    raise InvalidInput(
        f"the format {format!r} is not one of a model that holds no code, or its content is wrong",
        next_step=f"send a model in ONNX, or coefficients such as {EXAMPLE}",
    )


def linear_of(given: Any) -> Linear:
    """Refuses a document that is no list of coefficients."""
    if isinstance(given, Mapping) and set(given) <= {"coefficients", "intercept", "link"}:
        weights, intercept, link = given.get("coefficients"), given.get("intercept", 0.0), given.get("link", "identity")
        if (
            isinstance(weights, list | tuple)
            and weights
            and all(map(_is_number, [*weights, intercept]))
            and isinstance(link, str)
            and link in LINKS
        ):
            return Linear(tuple(map(float, weights)), float(intercept), link)
    raise InvalidInput("a model of coefficients is wrong", next_step=f"for example {EXAMPLE}")


def _is_number(given: object) -> bool:
    if not isinstance(given, int | float) or isinstance(given, bool):
        return False
    try:
        return math.isfinite(given)
    except OverflowError:  # a whole number beyond all floating-point numbers
        return False


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
