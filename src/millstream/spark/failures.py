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
OURS = str(Path(__file__).parent.parent)


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
    return SparkFailed(
        f"Spark stopped the job: {_reason(str(error)) or type(error).__name__}",
        where=log,
        next_step="run it again: it goes on from its last complete batch",
    )


def _reason(said: str) -> str | None:
    """The line that says what went wrong: where Python's own lines are told, the last of them."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else None
