"""The process behind a time plane of the console: loads the flow of a job, and repeats its batches as they complete."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    from millstream.cli.job_commands.run import chosen_flow
    from millstream.web_console.plane_feed import failure, write_plane

    log_address, job, folder, file, flow, step = arguments
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the file prints is not a line of the plane
    with failure(lines):
        found, _ = chosen_flow(Path(file), flow or None, log_address)
        write_plane(found, step or None, folder, log_address, job, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
