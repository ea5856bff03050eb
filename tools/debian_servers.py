"""The servers and the browser that tests use and PyPI does not have. Tests of a missing one are skipped by name.

`python tools/debian_servers.py` lists which of them are here; with `--install`, the missing ones are installed with
apt-get, as root. Kafka, Postgres, S3 and HDFS are not among them: the project installs and starts those by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "mariadb-server": ("mariadbd", "mysqld"),
    "mosquitto": ("mosquitto",),
    "rabbitmq-server": ("rabbitmq-server",),
    "redis-server": ("redis-server", "valkey-server"),
}
"""A Debian package, and the names of its program."""
MISSING = "{} is missing: install the package of that name (python tools/debian_servers.py --install)"
FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/opt/homebrew/sbin:/opt/homebrew/bin"


def program(package: str, *names: str) -> str | None:
    """Where the program of a package is, or another program of it by one of these names; None if it is missing."""
    return next((path for name in names or PACKAGES[package] if (path := shutil.which(name, path=FOLDERS))), None)


def install(packages: list[str]) -> None:
    """Without starting what it installs: each test starts its own, in a folder of its own."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "--quiet=2"], check=False, env=quiet)
    command = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", *packages]
    subprocess.run(command, check=False, env=quiet, stdout=subprocess.DEVNULL)


def main(arguments: list[str]) -> int:
    missing = [package for package in PACKAGES if program(package) is None]
    if "--install" in arguments and missing and shutil.which("apt-get"):
        install(missing)
    for package in PACKAGES:
        sys.stdout.write(f"{package}: {program(package) or 'missing: its tests are skipped'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
