"""A failure in a worker reaches the user in the user's own terms: as plain data, in one marked line of Spark's error.

What a worker raises passes through Spark as text, and that text may quote records. So the line is known by a mark that
is random for each run, it holds no objects, and it names only classes of `millstream.errors`: a record that imitates
it is text like any other.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream import errors
from millstream.errors import DiskFull, MillstreamError, SparkFailed, StepFailed
from millstream.log.disk import NO_ROOM

_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
}
_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b(: |$)")
SHIPPED = "<millstream>"
"""What stack traces of workers call the folder of this package, which came to them in a zip."""
OURS = (str(Path(__file__).parent.parent), SHIPPED)
# What Spark says when a task has failed for good: how often, where, and why.
_TASK = re.compile(
    r"failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \((.*?) executor (\w+)\): (.*)"
)
_LOST = re.compile(r"ExecutorLostFailure|Lost executor|executor (heartbeat|lost)", re.IGNORECASE)
# What Java makes of a full disk, on a line of its own: classes of exceptions, then the words of the C library.
_FULL = re.compile(
    r"^(?:Caused by: )?(?:[\w.$]+: )+(?:/.* \()?(?:No space left on device|Disk quota exceeded)", re.MULTILINE
)
FULL_SHARE = 0.05
"""A disk with less than this share left is one that a large write can have failed on; the rest of it is freed again."""
AGAIN = "run it again: it continues from its last complete batch"
_CLASS = re.compile(r"^(?:[a-z_0-9]+\.)+(?=[A-Z])")


def new_mark() -> str:
    """A mark for the failures of one run: nobody who writes a record can know it."""
    return f"MILLSTREAM-FAILURE-{secrets.token_hex(16)}:"


class Failed(RuntimeError):
    """What Spark is given; the user sees the error inside."""

    def __init__(self, error: MillstreamError, mark: str) -> None:
        super().__init__(f"{error}\n{mark}{_as_text(error)}")


def _as_text(error: MillstreamError) -> str:
    """Class, what, where and next step. Base64, so that nothing on the way escapes, wraps or splits it."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    said = json.dumps([kind, error.what, error.where, error.next_step])
    return base64.b64encode(said.encode()).decode()


def _from_text(text: str) -> MillstreamError:
    kind, what, where, next_step = json.loads(base64.b64decode(text))
    found: MillstreamError = _KINDS[kind](what, where=where, next_step=next_step)
    return found


@contextmanager
def marked(mark: str, step: str | None = None) -> Iterator[None]:
    """Marks what fails inside, so that the driver can report it to the user."""
    try:
        yield
    except Failed:
        raise
    except MillstreamError as error:
        raise Failed(error, mark) from error
    except OSError as error:
        raise Failed(_no_room(error) or of_users_code(error, step), mark) from error
    except Exception as error:  # of a library or of the user's own code, which runs inside ours
        raise Failed(of_users_code(error, step), mark) from error


def of_users_code(error: Exception, step: str | None) -> StepFailed:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    at = f"the step '{step}'" if step else "a step of the flow"
    said = str(error).splitlines()[0] if str(error) else ""
    return StepFailed(
        f"{at} failed: {type(error).__name__}: {said}",
        where=place,
        next_step="fix it and run the job again: it continues from its last complete batch",
    )


def _no_room(error: OSError, place: Path | None = None) -> DiskFull | None:
    if error.errno not in NO_ROOM:
        return None
    return _disk_full(error.filename or place or tempfile.gettempdir())


def _disk_full(where: object) -> DiskFull:
    return DiskFull("there is no room left on the disk", where=str(where), next_step=f"make room there, then {AGAIN}")


def _full_disk(said: str, folder: Path | None) -> DiskFull | None:
    """Spark does not name the file, and its text may quote records: so the disks that it writes to are looked at."""
    if not _FULL.search(said):
        return None
    for place in filter(None, (folder, Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(place)
        if usage.free < FULL_SHARE * usage.total:
            return _disk_full(place)
    return None


def of_query(error: BaseException, mark: str, log: str | None = None, folder: Path | None = None) -> MillstreamError:
    """What went wrong in a query whose workers mark their failures so, for the user. `folder` is the job's."""
    if isinstance(error, MillstreamError):
        return error
    if isinstance(error, OSError) and (full := _no_room(error, folder)):
        return full
    found = re.search(re.escape(mark) + r"([A-Za-z0-9+/=]+)", str(error))
    if found:
        return _from_text(found.group(1))
    said = str(error)
    if full := _full_disk(said, folder):
        return full
    again = AGAIN
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
