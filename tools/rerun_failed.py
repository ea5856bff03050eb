"""Runs the tests that failed in the last run once more, alone and one after the other.

pytest's own --last-failed does not find tests of a group: pytest-xdist appends the group to their names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
COUNT_MAX = 20
"""More than that do not fail by chance."""


def failed_tests(recorded: str) -> list[str]:
    """The names as pytest takes them: without the `@group` behind the last bracket."""
    return sorted({re.sub(r"@[^]:@/]+$", "", name) for name in json.loads(recorded)})


def main() -> int:
    names = failed_tests(FAILED.read_text()) if FAILED.exists() else []
    if not names or len(names) > COUNT_MAX:
        sys.stdout.write(f"{len(names)} tests are recorded as failed: no second run\n")
        return 1
    sys.stdout.write("once more: " + " ".join(names) + "\n")
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *names], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
