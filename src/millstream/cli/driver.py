"""The process of one run of a submitted job: `millstream run`, with its lock held and its end written down.

The supervisor starts it, and it does not depend on it afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from millstream.errors import MillstreamError


def main(arguments: list[str]) -> int:
    if arguments[0] == "--check":
        return _check(arguments[1], Path(arguments[2]), arguments[3] if len(arguments) > 3 else None)
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


def _check(log_address: str, file: Path, flow: str | None) -> int:
    """Loads a file, and prints the name of its flow or what is wrong with it."""
    from millstream.cli.run import chosen_flow

    try:
        found, _ = chosen_flow(file, flow, log_address)
        document: dict[str, object] = {"flow": found.name}
    except MillstreamError as error:
        document = {"error": {"what": error.what, "where": error.where, "next": error.next_step}}
    sys.stdout.write(f"\n{json.dumps(document)}\n")  # behind what the file itself prints
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
