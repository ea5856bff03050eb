"""Gives a running app the flows that its file has now: those that are new are added, those that are gone removed.

The supervisor asks for it by a file in the folder of the run, and this process answers by another one. A flow whose
definition has changed goes on as it was, and the answer names it: it needs another run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidInput, MillstreamError
from millstream.secrets import concealed

if TYPE_CHECKING:
    from millstream.plan.flow import Flow
    from millstream.plan.nodes import Node

POLL_S = 0.2
USER_LINE = "user_line"
_run: Path | None = None


def answer_in(run: Path) -> None:
    """From now on requests in the folder of a run are answered while its flow runs."""
    global _run
    _run = run


@contextmanager
def reloadable(flow: Flow, file: Path, broker: str | None) -> Iterator[None]:
    """Answers requests, if this process has a supervisor."""
    if _run is None:
        yield
        return
    ends = threading.Event()
    watching = threading.Thread(
        target=_watch, args=(_run, ends, partial(_reload, flow, file, broker)), name="millstream-reload", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        ends.set()


def _watch(run: Path, ends: threading.Event, reload: partial[dict[str, Any]]) -> None:
    from millstream.log.storage.disk import read_document, write_document
    from millstream.supervision.drivers import RELOAD, RELOADED

    answered = None
    while not ends.wait(POLL_S):
        if not (run / RELOAD).exists():
            continue
        try:
            asked = read_document(run / RELOAD)["id"]
            if asked != answered:
                write_document(run / RELOADED, {"id": asked, **_answer(reload)})
                answered = asked
        except (MillstreamError, OSError, ValueError, LookupError, TypeError):  # a full disk, say: it is tried again
            continue


def _answer(reload: partial[dict[str, Any]]) -> dict[str, Any]:
    try:
        return reload()
    except MillstreamError as error:
        parts = {"what": error.what, "where": error.where, "next": error.next_step}
        return {
            "error": {"kind": type(error).__name__, **{name: text and concealed(text) for name, text in parts.items()}}
        }
    except Exception as error:
        return {"error": {"kind": "InvalidInput", "what": concealed(repr(error)), "where": None, "next": None}}


def _reload(app: Flow, file: Path, broker: str | None) -> dict[str, Any]:
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.plan.apps import App

    if not isinstance(app, App):
        raise InvalidInput(
            f"'{app.name}' is a single flow: only the flows of an app are added and removed while it runs",
            next_step="millstream jobs restart, or millstream jobs upgrade",
        )
    found, _ = chosen_flow(file, app.name, broker)
    if not isinstance(found, App):
        raise InvalidInput(f"'{app.name}' is no app in the file any more", next_step="millstream jobs restart")
    before = {flow.name: flow for flow in app.flows}
    after = {flow.name: flow for flow in found.flows}
    app.take(found.flows)
    return {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [name for name in after if name in before and _differ(before[name], after[name])],
    }


def _differ(one: Flow, other: Flow) -> bool:
    return _definition(one) != _definition(other)


def _definition(flow: Flow) -> list[str]:
    """Its steps, with the code of the functions in them. Where in the file they stand does not matter."""
    from millstream.plan.walking import in_order

    return [_step(node) for node in in_order(flow.check())]


def _step(node: Node) -> str:
    inputs = [each.name for each in node.inputs]
    return repr([node.name, node.label, inputs, node.schema.ddl, *_parts(node, [])])


def _parts(value: Any, within: list[Any]) -> Iterator[str]:
    """The code of functions in a part of a step, and plain values."""
    from millstream.plan.nodes import Node

    if any(each is value for each in within):
        return
    inside = [*within, value]
    if isinstance(value, FunctionType):
        yield _text(value.__code__)
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty one
                yield from _parts(cell.cell_contents, inside)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each, inside)
    elif isinstance(value, dict):
        yield from _parts(list(value.items()), inside)
    elif is_dataclass(value) and not isinstance(value, type) and (not within or not isinstance(value, Node)):
        for each in fields(value):
            if each.name != USER_LINE:
                yield from _parts(getattr(value, each.name), inside)
    elif isinstance(value, str | int | float | bool):
        yield repr(value)


def _text(code: CodeType) -> str:
    constants = [_text(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr([code.co_code.hex(), code.co_names, constants])
