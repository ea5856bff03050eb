"""Parameters of a flow file: values that are given where it is submitted or run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, TypeVar, overload

from millstream.errors import InvalidInput
from millstream.user_lines import AtUsersLine, what_exists

VARIABLE = "MILLSTREAM_PARAMS"
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
Value = TypeVar("Value", str, int, float, bool)
_read: set[str] = set()
"""The parameters that were asked for in this process."""


@overload
def param(name: str) -> str: ...


@overload
def param(name: str, default: Value) -> Value: ...


def param(name: str, default: Any = None) -> Any:
    """A parameter of this file: `--param NAME=VALUE` of `millstream run` and `millstream jobs submit`.

    The value has the type of the default (str, int, float or bool); without a default, it is a text that must be given.
    """
    _read.add(name)
    with AtUsersLine():
        given = given_parameters()
        if name not in given:
            if default is None:
                known = f"; {what_exists(name, given, kind='parameters')}" if given else ""
                raise InvalidInput(f"the parameter '{name}' is missing", next_step=f"--param {name}=…{known}")
            return default
        return _converted(name, given[name], type(default))


def given_parameters() -> dict[str, str]:
    found = json.loads(os.environ.get(VARIABLE) or "{}")
    return {str(name): str(value) for name, value in found.items()}


def refuse_unread(names: Iterable[str], where: str) -> None:
    """Raises an error for a parameter that the file did not ask for when it was loaded."""
    for name in names:
        if name not in _read:
            raise InvalidInput(
                f"the file reads no parameter '{name}'",
                where=where,
                next_step=what_exists(name, sorted(_read), kind="parameters")
                if _read
                else f"read it at the top of the file: ms.param('{name}')",
            )


def set_parameters(values: dict[str, str]) -> None:
    """For this process and those that it starts."""
    os.environ[VARIABLE] = json.dumps({**given_parameters(), **values})


def _converted(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in (*TRUE, *FALSE):
            return text.lower() in TRUE
    elif kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    else:
        return text
    raise InvalidInput(f"{text!r} is not a value of the parameter '{name}'", next_step=f"give it as {kind.__name__}")
