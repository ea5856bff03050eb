"""Carries an error from a worker to the user through Spark: as plain data, in one marked line of Spark's error.

A worker's error passes through Spark as text, and that text may quote records. So the mark of the line is random for
each run, the line contains no pickled objects, and it names only classes of `millstream.errors`: a record that imitates
it is just text.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream import errors
from millstream.errors import DiskFull, MillstreamError, SparkFailed, StepFailed
from millstream.private_files import NO_ROOM

if TYPE_CHECKING:
    from millstream.plan.nodes import Node

_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
}
_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b(: |$)")
SHIPPED = "<millstream>"
"""The name of this package's folder in stack traces of workers, which get it as a zip."""
OURS = (str(Path(__file__).parent.parent), SHIPPED)
# Spark's message when a task has finally failed: how often, where, and why.
_TASK = re.compile(
    r"failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \((.*?) executor (\w+)\): (.*)"
)
_LOST = re.compile(r"ExecutorLostFailure|Lost executor|executor (heartbeat|lost)", re.IGNORECASE)
# Java's message for a full disk, on its own line: exception classes, then the message of the C library.
_FULL = re.compile(
    r"^(?:Caused by: )?(?:[\w.$]+: )+(?:/.* \()?(?:No space left on device|Disk quota exceeded)", re.MULTILINE
)
FULL_SHARE = 0.05
"""A large write may have failed on a disk with less than this share left, since what it wrote is freed again."""
RERUN = "run it again: it continues from its last complete batch"
_CLASS = re.compile(r"^(?:[a-z_0-9]+\.)+(?=[A-Z])")


def new_mark() -> str:
    """A mark for the failures of one run, which no writer of a record can know."""
    return f"MILLSTREAM-FAILURE-{secrets.token_hex(16)}:"


class Failed(RuntimeError):
    """Raised to Spark; the user sees the error inside."""

    def __init__(self, error: MillstreamError, mark: str, step: str | None = None) -> None:
        super().__init__(f"{error}\n{mark}{_as_text(error, error.step or step)}")


def _as_text(error: MillstreamError, step: str | None) -> str:
    """Class, what, where, next step and step, in Base64, so that nothing in between escapes, wraps or splits it."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    text = json.dumps([kind, error.what, error.where, error.next_step, step])
    return base64.b64encode(text.encode()).decode()


def _from_text(text: str) -> MillstreamError:
    kind, what, where, next_step, step = json.loads(base64.b64decode(text))
    found: MillstreamError = _KINDS[kind](what, where=where, next_step=next_step)
    return found.of_step(step)


@contextmanager
def marked(mark: str, step: str | None = None) -> Iterator[None]:
    """Marks errors raised inside, so that the driver can report them to the user."""
    try:
        yield
    except Failed:
        raise
    except MillstreamError as error:
        raise Failed(error, mark, step) from error
    except OSError as error:
        raise Failed(_no_room(error) or users_failure(error, step), mark, step) from error
    except Exception as error:  # of a library, or of the user's code that ours calls
        raise Failed(users_failure(error, step), mark, step) from error


def users_failure(error: Exception, step: str | None) -> StepFailed:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    line = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    what = f"the step '{step}'" if step else "a step of the flow"
    text = str(error).splitlines()[0] if str(error) else ""
    return StepFailed(
        f"{what} failed: {type(error).__name__}: {text}",
        where=line,
        next_step="fix it and run the job again: it continues from its last complete batch",
    )


def _no_room(error: OSError, place: Path | None = None) -> DiskFull | None:
    if error.errno not in NO_ROOM:
        return None
    return _disk_full(error.filename or place or tempfile.gettempdir())


def _disk_full(where: object) -> DiskFull:
    return DiskFull("no space left on the disk", where=str(where), next_step=f"free some space, then {RERUN}")


def _full_disk(text: str, folder: Path | None) -> DiskFull | None:
    """Spark does not name the file, and its text may quote records, so the disks that it writes to are checked."""
    if not _FULL.search(text):
        return None
    for place in filter(None, (folder, Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(place)
        if usage.free < FULL_SHARE * usage.total:
            return _disk_full(place)
    return None


def of_query(
    error: BaseException,
    mark: str,
    log: str | None = None,
    folder: Path | None = None,
    in_spark: Iterable[Node] = (),
) -> MillstreamError:
    """The error of a query, for the user. `mark` is that of its workers, `folder` the job's, and `in_spark` are the
    steps that run in Spark's own engine."""
    from millstream.spark.expression_failures import of_expression  # not in workers: it imports much of `plan`

    if isinstance(error, MillstreamError):
        return error
    if isinstance(error, OSError) and (full := _no_room(error, folder)):
        return full
    found = re.search(re.escape(mark) + r"([A-Za-z0-9+/=]+)", str(error))
    if found:
        return _from_text(found.group(1))
    text = str(error)
    if full := _full_disk(text, folder):
        return full
    if failed := of_expression(text, in_spark):
        return failed
    next_step = RERUN
    if _LOST.search(reason_of(text) or ""):
        next_step = (
            "check whether workers run out of memory (--conf spark.executor.memoryOverhead=1g gives their Python "
            f"more), then {next_step}"
        )
    return SparkFailed(
        f"Spark stopped the job: {reason_of(text) or type(error).__name__}", where=log, next_step=next_step
    )


def reason_of(text: str) -> str | None:
    """The line with the reason: the last one of a Python traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    task = next((found for line in lines if (found := _TASK.search(line))), None)
    if task and "Traceback (most recent call last)" not in text:
        times, host, executor, why = task.groups()
        return f"a task failed {times} times, last on {host} (executor {executor}): {_CLASS.sub('', why)}"
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    return lines[0] if lines else None
