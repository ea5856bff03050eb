"""A DuckDB with its own readers of Delta Lake and Iceberg, to read what Millstream writes.

Its extensions are on PyPI for one version only, which need not be the one that Millstream uses. So it is installed
once into a folder of its own, `.duckdb/`, and runs in a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSION = "1.5.5"
PACKAGES = ("duckdb", "duckdb-extension-avro", "duckdb-extension-delta", "duckdb-extension-iceberg")
KEPT = Path(__file__).resolve().parent.parent / ".duckdb"
QUERY = """
import json, sys
from pathlib import Path
import duckdb
db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for path in sorted(Path(sys.argv[1]).glob("duckdb_extension_*/extensions/*/*.duckdb_extension")):
    db.execute(f"LOAD '{path}'")
print(json.dumps(db.execute(sys.argv[2]).fetchall(), default=str))
"""


def installed() -> Path:
    """The folder that has it. It is installed by the first call."""
    folder = KEPT / VERSION
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "installing").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            wanted = [f"{name}=={VERSION}" for name in PACKAGES]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--target", str(folder), *wanted], check=True)
            (folder / "complete").touch()
    return folder


def rows(query: str) -> list[list[Any]]:
    """What a query returns; `delta_scan` and `iceberg_scan` are known."""
    folder = installed()
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{QUERY}"]
    done = subprocess.run([*command, str(folder), query], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found: list[list[Any]] = json.loads(done.stdout)
    return found
