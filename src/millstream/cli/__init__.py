"""The command line: it asks the log and prints what the log says; whatever needs deciding is decided there."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from millstream.cli.app import app

        app(prog_name="millstream")
    except KeyboardInterrupt:  # before the commands were loaded, or after they had ended
        sys.exit(130)
