"""The errors of a job, found in what its runs have printed, kept with their runs, and counted."""

from __future__ import annotations

from pathlib import Path

from millstream.supervision.failures import ERROR, WARNING, FailedRun, Failure, ending, failures_in, grouped
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import FAILURES_KEPT, Observed, Store

PRINTED = """\
batch 3: 12 rows
warning: the sink is slow
Traceback (most recent call last):
  File "flow.py", line 3, in price
    return 1 / 0
ZeroDivisionError: division by zero
error: the step 'price' failed: division by zero
  where: flow.py:3
  next:  fix the function and start the job again
"""


def test_errors_and_tracebacks_are_found() -> None:
    warning, traceback, error = failures_in(PRINTED)
    assert (warning.kind, warning.what) == (WARNING, "the sink is slow")
    assert (traceback.what, "return 1 / 0" in (traceback.details or "")) == (
        "ZeroDivisionError: division by zero",
        True,
    )
    assert (error.where, error.next) == ("flow.py:3", "fix the function and start the job again")


def test_what_ended_a_run() -> None:
    last = ending(PRINTED, "it ended with exit code 1")
    assert last.what == "the step 'price' failed: division by zero"
    assert "ZeroDivisionError" in (last.details or "")
    assert ending("it printed nothing special", "its process was killed") == Failure(ERROR, "its process was killed")
    assert ending("warning: slow\n", "its process was killed").what == "its process was killed"


def test_equal_errors_are_counted() -> None:
    found = [FailedRun(run, 10.0 * run, Failure(ERROR, what)) for run, what in ((1, "a"), (2, "b"), (3, "a"))]
    assert [(each["what"], each["times"], each["first"], each["last"]) for each in grouped(found)] == [
        ("a", 2, 10.0, 30.0),
        ("b", 1, 20.0, 20.0),
    ]


def test_failures_are_kept_once_per_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "supervisor.db")
    store.add(JobSpecification("a", "/nowhere/flow.py", "a"), "ann", Observed.FAILED, None)
    with store.transaction():
        for run in range(1, FAILURES_KEPT + 3):
            store.add_failure("a", run, Failure(ERROR, f"failure {run}"))
            store.add_failure("a", run, Failure(ERROR, "seen a second time"))
    found = store.failures("a")
    assert (len(found), found[0].run, found[-1].run) == (FAILURES_KEPT, FAILURES_KEPT + 2, 3)
    assert found[0].failure.what == f"failure {FAILURES_KEPT + 2}"
    store.remove("a")
    assert store.failures("a") == []
    store.close()
