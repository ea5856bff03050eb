"""Builds the console's pages from console/ into the package: `python tools/build_console.py`. It needs Node 20 and npm.

The files it builds are kept in git and shipped, so that nobody else needs Node. Beside them it writes a hash of their
sources and one of the files, by which a test finds files that were not built again, or were edited by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "millstream" / "web_console" / "static"
HASHES = "hashes.json"
LICENCES = "licences.txt"
SHIPPED = ("preact", "@dagrejs/dagre", "@dagrejs/graphlib")
NOT_SOURCES = ("node_modules", "dist")


def hashes(built: Path = BUILT) -> dict[str, str]:
    """Of the names and contents of all sources, and of all files that were built from them."""
    return {"sources": _hash(SOURCES, NOT_SOURCES), "built": _hash(built, (HASHES,))}


def _hash(folder: Path, without: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and parts[0] not in without:
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def install() -> None:
    """The packages that the build needs."""
    npm("install", "--no-package-lock", "--no-audit", "--no-fund")


def npm(*arguments: str) -> None:
    found = shutil.which("npm")
    if found is None:
        sys.exit("npm is missing: install Node 20 or newer")
    done = subprocess.run([found, *arguments], cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"npm {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def licences() -> str:
    """Of the packages that are in the built files."""
    found = [path for name in SHIPPED for path in (SOURCES / "node_modules" / name).glob("LICENSE*")]
    names = [str(path.parent.relative_to(SOURCES / "node_modules")) for path in found]
    return "\n".join(f"{name}\n\n{path.read_text()}" for name, path in zip(names, found, strict=True))


def main() -> None:
    if not (SOURCES / "node_modules").is_dir():
        install()
    npm("run", "check")
    npm("run", "build")
    (BUILT / LICENCES).write_text(licences())
    (BUILT / HASHES).write_text(json.dumps(hashes(), indent=2) + "\n")


if __name__ == "__main__":
    main()
