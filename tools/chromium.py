"""The browser that the console's tests use: Debian's Chromium. `python tools/chromium.py` says where it is.

`python tools/chromium.py --install` installs it with apt-get, as root.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "Chromium is missing: install Debian's package chromium (python tools/chromium.py --install)"


def found() -> Path | None:
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    return None if path is None else Path(path)


def main(arguments: list[str]) -> int:
    if "--install" in arguments and found() is None:
        command = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
        subprocess.run(command, check=False)
    path = found()
    sys.stdout.write(f"{MISSING if path is None else path}\n")
    return 1 if path is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
