"""A failure in a worker reaches the user in the user's own terms: its text travels through Spark as one marked line."""

from __future__ import annotations

import base64
import pickle
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.errors import MillstreamError, SparkFailed, StepFailed

MARK = "MILLSTREAM-FAILURE:"
_FOUND = re.compile(re.escape(MARK) + r"([A-Za-z0-9+/=]+)")
_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b(: |$)")
SHIPPED = "<millstream>"
"""What stack traces of workers call the folder of this package, which came to them in a zip."""
OURS = (str(Path(__file__).parent.parent), SHIPPED)
# What Spark says when a task has failed for good: how often, where, and why.
_TASK = re.compile(
    r"failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \((.*?) executor (\w+)\): (.*)"
)
_LOST = re.compile(r"ExecutorLostFailure|Lost executor|executor (heartbeat|lost)", re.IGNORECASE)
_CLASS = re.compile(r"^(?:[a-z_0-9]+\.)+(?=[A-Z])")


class Failed(RuntimeError):
    """What Spark is told; the user sees the error inside."""

    def __init__(self, error: MillstreamError) -> None:
        super().__init__(f"{error}\n{MARK}{base64.b64encode(pickle.dumps(error)).decode()}")


@contextmanager
def told(step: str | None = None) -> Iterator[None]:
    """Marks what fails inside, so that the driver can tell the user."""
    try:
        yield
    except Failed:
        raise
    except MillstreamError as error:
        raise Failed(error) from error
    except Exception as error:  # of a library or of the user's own code, which runs inside ours
        raise Failed(_of_users_code(error, step)) from error


def _of_users_code(error: Exception, step: str | None) -> StepFailed:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    at = f"the step '{step}'" if step else "a step of the flow"
    said = str(error).splitlines()[0] if str(error) else ""
    return StepFailed(
        f"{at} failed: {type(error).__name__}: {said}",
        where=place,
        next_step="mend it and run the job again: it goes on from its last complete batch",
    )


def of_query(error: BaseException, log: str | None = None) -> MillstreamError:
    """What went wrong in a query, for the user."""
    if isinstance(error, MillstreamError):
        return error
    found = _FOUND.search(str(error))
    if found:
        inner = pickle.loads(base64.b64decode(found.group(1)))
        assert isinstance(inner, MillstreamError)
        return inner
    said = str(error)
    again = "run it again: it goes on from its last complete batch"
    if _LOST.search(reason_of(said) or ""):
        again = (
            "see whether workers die for want of memory (--conf spark.executor.memoryOverhead=1g gives their Python "
            f"more), then {again}"
        )
    return SparkFailed(f"Spark stopped the job: {reason_of(said) or type(error).__name__}", where=log, next_step=again)


def reason_of(said: str) -> str | None:
    """The line that says what went wrong: where Python's own lines are told, the last of them."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    task = next((found for line in lines if (found := _TASK.search(line))), None)
    if task and "Traceback (most recent call last)" not in said:
        times, host, executor, why = task.groups()
        return f"a task failed {times} times, last on {host} (executor {executor}): {_CLASS.sub('', why)}"
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else None
