"""An expression or a user's function that failed inside Spark's own engine, in the user's terms.

Spark's error comes as text, which quotes values of records. It is only searched for what to show, and never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from millstream.errors import MillstreamError, RecordFailed, StepFailed
from millstream.plan.nodes import Node
from millstream.plan.on_spark.needs_spark import SparkFunction, expressions_of

# Spark's error of an expression: its code, its message, and a quote of the expression or the line of a Column.
_EXPRESSION = re.compile(
    r"(?:\A|(?:Exception|Error): )\[[A-Z0-9_.]+\] (?P<message>[^\n]*?) SQLSTATE: 2[0-9A-Z]{4}\n"
    r"== (?P<kind>SQL|DataFrame)[^\n]*==\n(?P<quote>.*?)\n\n",
    re.DOTALL,
)
_WITHOUT_QUOTE = re.compile(
    r"(?:\A|(?:Exception|Error): )\[[A-Z0-9_.]+\] (?P<message>[^\n]*?) SQLSTATE: (?:22|P0)[0-9A-Z]{3}"
)
_PYTHON = re.compile(r"An exception was thrown from the Python worker:\n(?P<trace>.*?)(?:\n SQLSTATE|\Z)", re.DOTALL)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
_RAISED = re.compile(r"^[\w.]+(?:: .*)?$", re.MULTILINE)
_CALLED = re.compile(r"was called from\n(?P<line>\S+:\d+)")
_SETTING = re.compile(r' If necessary set "spark\..*')
AGAIN = "fix it and run the job again: it continues from its last complete batch"
FILTER = "filter such rows out with where(…) first, or use a try_ function such as try_cast(…)"


def of_expression(text: str, steps: Iterable[Node]) -> MillstreamError | None:
    """The error of one of these steps, which Spark ran, given the text of Spark's error; None if it is another one."""
    steps = list(steps)
    if not steps:
        return None
    if python := _PYTHON.search(text):
        return _of_function(python["trace"], steps)
    if found := _EXPRESSION.search(text):
        called = _CALLED.search(found["quote"]) if found["kind"] == "DataFrame" else None
        step = _quoted_step(found["quote"], steps)
        return _record_failed(found["message"], step, called["line"] if called else None)
    if short := _WITHOUT_QUOTE.search(text):
        return _record_failed(short["message"], _only(steps), None)
    return None


def _record_failed(message: str, step: Node | None, line: str | None) -> RecordFailed:
    return RecordFailed(
        f"{_named(step)} cannot handle a record: {_SETTING.sub('', message).rstrip('. ')}",
        where=line or (None if step is None else step.user_line),
        next_step=FILTER,
    ).of_step(None if step is None else step.name)


def _of_function(trace: str, steps: Sequence[Node]) -> StepFailed | None:
    frames = [frame for frame in _FRAME.finditer(trace) if "site-packages" not in frame["file"]]
    raised = _RAISED.findall(trace.partition("\n")[2])
    if not raised:
        return None
    call = f"{frames[0]['name']}(" if frames else ""
    named = [step for step in steps if call and any(call in each.spark for each in expressions_of(step))]
    calling = [
        step
        for step in steps
        if isinstance(step, SparkFunction) or any(each.calls_python for each in expressions_of(step))
    ]
    step = _only(named) or _only(calling)
    return StepFailed(
        f"{_named(step)} failed: {raised[-1]}",
        where=f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else step.user_line if step else None,
        next_step=AGAIN,
    ).of_step(None if step is None else step.name)


def _quoted_step(quote: str, steps: Sequence[Node]) -> Node | None:
    lines = [line for line in quote.splitlines() if line.strip(" ^")]
    text = lines[0].strip(". ") if lines else ""
    quoted = [step for step in steps if text and any(text in each.spark for each in expressions_of(step))]
    return _only(quoted) or _only(steps)


def _only(steps: Iterable[Node]) -> Node | None:
    found = list(dict.fromkeys(steps))
    return found[0] if len(found) == 1 else None


def _named(step: Node | None) -> str:
    return "a step that Spark runs" if step is None else f"the step '{step.name}'"
