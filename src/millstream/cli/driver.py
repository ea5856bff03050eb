"""The process of one run of a submitted job: `millstream run`, with its lock held and its end written down.

The supervisor starts it, and it does not depend on it afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO, cast

from millstream.errors import MillstreamError
from millstream.secrets import conceal, concealed, is_likely_secret


def main(arguments: list[str]) -> int:
    _conceal_secrets()
    if arguments[0] in QUESTIONS:
        return _answer(QUESTIONS[arguments[0]], *arguments[1:])
    from millstream.cli.job_commands.reloading import answer_in
    from millstream.supervision.drivers import note_end, note_process

    sys.stdout = cast("TextIO", _Concealing(sys.stdout))
    run, lock, *command = arguments
    os.set_inheritable(int(lock), False)  # the JVM must not hold the job's lock when this process is gone
    folder = Path(run)
    note_process(folder, os.getpid())
    answer_in(folder)
    code = _run(command)
    note_end(folder, code)
    return code


def _run(command: list[str]) -> int:
    from millstream.cli.app import app

    try:
        app(command, prog_name="millstream")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:
        return 130
    return 0


class _Concealing:
    """A stream that hides secrets in what this process prints, also those that only the flow file knows."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(concealed(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _conceal_secrets() -> None:
    """From now on nothing that is printed as an error shows a parameter or a variable that is a secret."""
    from millstream.plan.parameters import given_parameters

    named = [*os.environ.items(), *given_parameters().items()]
    conceal(value for name, value in named if is_likely_secret(name))
    sys.stderr = cast("TextIO", _Concealing(sys.stderr))


def _answer(question: Callable[..., dict[str, object]], *arguments: str) -> int:
    """Prints what the supervisor asked for, or what is wrong, behind what the file itself prints."""
    try:
        document = question(*arguments)
    except MillstreamError as error:
        parts = {"what": error.what, "where": error.where, "next": error.next_step}
        shown = {name: text and concealed(text) for name, text in parts.items()}
        document = {"error": {"kind": type(error).__name__, **shown}}
    sys.stdout.write(f"\n{json.dumps(document, default=_text)}\n")
    return 0


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _check(log_address: str, file: str, flow: str, master: str, is_new: str) -> dict[str, object]:
    """Loads a file, and returns the name of its flow. The Spark master that it will run on has to be there.

    A new job must read all its parameters; an upgraded one may have become independent of some.
    """
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.plan.parameters import given_parameters, refuse_unread
    from millstream.spark.session.start import check_reachable

    found, settings = chosen_flow(Path(file), flow or None, log_address)
    if is_new:
        refuse_unread(given_parameters(), file)
    check_reachable(master or settings.get("master") or os.environ.get("MILLSTREAM_MASTER") or "")
    return {"flow": found.name}


def _state(_: str, folder: str, job: str, step: str, key: str, batches: str) -> dict[str, object]:
    """The state of a step, read by a Spark session of this process."""
    from millstream.jobs.job_folder import JobFolder
    from millstream.jobs.versions.state_rows import state_of

    return state_of(JobFolder(Path(folder), job), step, json.loads(key), int(batches))


def _compare(log_address: str, file: str, flow: str, folder: str, mapping: str) -> dict[str, object]:
    """What becomes of the state of a job if it continues with the flow of a file."""
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.jobs.job_folder import JobFolder
    from millstream.jobs.versions.upgrading import compared
    from millstream.spark.query.physical_plan import PhysicalPlan

    found, _ = chosen_flow(Path(file), flow or None, log_address)
    return compared(JobFolder(Path(folder), flow), PhysicalPlan(found.check(), 1), json.loads(mapping)).document()


def _rehearse(log_address: str, file: str, flow: str, old_file: str, given: str) -> dict[str, object]:
    """Runs the old and the new flow of a job over the same records, and compares their results."""
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.jobs.versions.rehearsal import rehearsed
    from millstream.jobs.versions.savepoints import Savepoints
    from millstream.records.durations import duration

    asked = json.loads(given)
    new, old = (chosen_flow(Path(each), flow or None, log_address)[0] for each in (file, old_file))
    return rehearsed(
        Savepoints(Path(asked["savepoints"])),
        asked["job"],
        old,
        new,
        broker=log_address,
        last=duration(asked["last"], what="last"),
        mapping=asked["map"],
    )


def _why(log_address: str, file: str, flow: str, folder: str, job: str, given: str) -> dict[str, object]:
    """Explains a result of a job: the answer of `millstream why`, or with `test` the test that it writes."""
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.plan.parameters import given_parameters
    from millstream.provenance.history import History
    from millstream.provenance.why import why
    from millstream.testing.cases import FlowFile, case_of, text_of

    os.nice(19)  # the job goes first
    asked = json.loads(given)
    is_test = asked.pop("test")
    question: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()
    }
    found, _ = chosen_flow(Path(file), flow or None, log_address)
    if not is_test:
        return why(found, broker=log_address, folder=folder, job=job, **question)
    history = History(found, broker=log_address, folder=folder, job=job)
    case = case_of(history, FlowFile(Path(file), flow or None, given_parameters()), **question)
    return {"file": f"test_{case.name}.py", "text": text_of(case, str(Path(file).resolve()))}


def _rehearse_dead_letters(log_address: str, file: str, flow: str, topic: str) -> dict[str, object]:
    """How many dead letters of a topic the flow of a file would take."""
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.cli.why_commands.dead_letters import rehearsed_letters
    from millstream.log import connect

    found, _ = chosen_flow(Path(file), flow or None, log_address)
    with connect(log_address) as log:
        return rehearsed_letters(found, log, topic)


QUESTIONS: dict[str, Callable[..., dict[str, object]]] = {
    "--check": _check,
    "--state": _state,
    "--compare": _compare,
    "--rehearse": _rehearse,
    "--why": _why,
    "--rehearse-dead-letters": _rehearse_dead_letters,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
