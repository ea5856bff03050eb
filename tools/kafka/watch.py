"""Runs a command for as long as the process that asked for it lives: watch.py PARENT_PID COMMAND…

A broker never outlives the test or the terminal it was started from, even if that is ended by `kill -9`. The id of the
parent tells, since it belongs to the whole process; the signal a kernel can send to orphans (PR_SET_PDEATHSIG) comes
when the *thread* that started them ends, and Linux alone has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

LOOK_S = 0.5


def main() -> int:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    # A stop is sent to the whole group, and this process waits for the other to obey. Not SIG_IGN: that is inherited.
    signal.signal(signal.SIGTERM, lambda *_: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while os.getppid() == parent:
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    os.killpg(0, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main())
