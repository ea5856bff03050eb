"""The command line: parses options and prints results; all decisions are made by the library."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from millstream.cli.app import app

        app(prog_name="millstream")
    except KeyboardInterrupt:  # before the commands were loaded, or after they ended
        sys.exit(130)
