"""Finds what works in the driver only, in functions that workers call: models of MLlib, which work on DataFrames."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from millstream.errors import InvalidPlan
from millstream.user_lines import users_line

MODELS = ("Transformer", "Estimator", "JavaModelWrapper")
"""The base classes of what MLlib calls models, by name: a plan never imports Spark."""
DEPTH_MAX = 4


def check_models(verb: str, function: object) -> None:
    """Rejects a model of MLlib, and a function that uses one: it cannot be sent to workers."""
    for model in _models(function, 0):
        raise InvalidPlan(
            f"{verb} calls its function in Python workers, but the model {type(model).__name__} of MLlib works on "
            "DataFrames, in the driver",
            where=users_line(),
            next_step="apply it to a DataFrame: stream.spark(lambda frame: model.transform(frame)), or "
            "flow.read(model.transform(frame)); or use a model of a Python library",
        )


def _models(value: Any, depth: int) -> Iterator[object]:
    if _is_model(value):
        yield value
    elif depth > DEPTH_MAX:
        return
    elif isinstance(value, MethodType):
        yield from _models(value.__self__, depth + 1)
        yield from _models(value.__func__, depth + 1)
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _models(part, depth + 1)
    elif isinstance(value, FunctionType):
        for part in _used(value):
            yield from _models(part, depth + 1)


def _is_model(value: Any) -> bool:
    return any(
        kind.__name__ in MODELS and kind.__module__.startswith(("pyspark.ml.", "pyspark.mllib."))
        for kind in type(value).__mro__
    )


def _used(function: FunctionType) -> Iterator[object]:
    """What a function refers to: its defaults, its closure, and globals by name."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _global_names(code: CodeType) -> set[str]:
    found = {str(each.argval) for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return found.union(*(_global_names(each) for each in code.co_consts if isinstance(each, CodeType)))
