"""The process of one run of a submitted job: `millstream run`, with its lock held and its end written down.

The supervisor starts it, and it does not depend on it afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from millstream.errors import MillstreamError


def main(arguments: list[str]) -> int:
    if arguments[0] in QUESTIONS:
        return _answer(QUESTIONS[arguments[0]], *arguments[1:])
    from millstream.supervision.drivers import note_end, note_process

    run, lock, *command = arguments
    os.set_inheritable(int(lock), False)  # the JVM must not hold the job's lock when this process is gone
    folder = Path(run)
    note_process(folder, os.getpid())
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


def _answer(question: Callable[..., dict[str, object]], *arguments: str) -> int:
    """Prints what the supervisor asked for, or what is wrong, behind what the file itself prints."""
    try:
        document = question(*arguments)
    except MillstreamError as error:
        failure = {"kind": type(error).__name__, "what": error.what, "where": error.where, "next": error.next_step}
        document = {"error": failure}
    sys.stdout.write(f"\n{json.dumps(document)}\n")
    return 0


def _check(log_address: str, file: str, flow: str) -> dict[str, object]:
    """Loads a file, and returns the name of its flow."""
    from millstream.cli.run import chosen_flow

    found, _ = chosen_flow(Path(file), flow or None, log_address)
    return {"flow": found.name}


def _state(_: str, folder: str, job: str, step: str, key: str) -> dict[str, object]:
    """The state of a step, read by a Spark session of this process."""
    from millstream.jobs.job_folder import JobFolder
    from millstream.jobs.state_rows import state_of

    return state_of(JobFolder(Path(folder), job), step, json.loads(key))


QUESTIONS: dict[str, Callable[..., dict[str, object]]] = {"--check": _check, "--state": _state}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
