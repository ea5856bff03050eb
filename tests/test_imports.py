"""Imports point one way: a package imports what stands in this table beside it, what those import, and no more."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream

ROOT = Path(millstream.__file__).parent
EVERYTHING = "everything"
MAY_IMPORT: dict[str, list[str]] = {
    "terminal": [],
    "readiness": [],
    "errors": ["terminal"],
    "private_files": ["errors"],
    "sqlite_file": ["private_files"],
    "secrets": ["errors"],
    "user_lines": ["errors"],
    "webhdfs": ["errors"],
    "remote_folders": ["secrets", "user_lines", "webhdfs"],
    "records": ["errors"],
    "postgres_address": ["secrets"],
    "log": ["records", "secrets", "private_files", "remote_folders"],
    "sketches": ["errors"],
    "bloom_filters": ["errors"],
    "expressions": ["records", "user_lines"],
    "search": ["records", "user_lines"],
    "plan": ["expressions", "search", "sketches", "bloom_filters", "secrets", "private_files", "postgres_address"],
    "state": ["records"],
    "operators": ["plan", "state"],
    "reference": ["plan"],
    "local": ["operators"],
    "metrics": ["records", "sqlite_file", "user_lines"],
    "webhooks": ["secrets"],
    "alerts": ["metrics", "webhooks", "postgres_address"],
    "connectors": ["plan", "log", "alerts"],
    "capture": ["connectors", "readiness"],
    "copies": ["capture"],
    "views": ["plan", "log"],
    "events": ["log"],
    "stored_queries": ["plan", "log"],
    "stored_models": ["plan", "log"],
    "calling": ["plan", "log"],
    "serving": ["connectors"],
    "bridges": ["serving", "readiness"],
    "spark": ["operators", "local", "connectors"],
    "jobs": ["spark", "metrics"],
    "provenance": ["jobs", "reference"],
    "asking": ["jobs", "serving"],
    "supervision": ["jobs", "serving", "calling", "asking", "capture"],
    "web_console": ["supervision", "provenance", "bridges"],
    "cli": [EVERYTHING],
    "testing": [EVERYTHING],
    "__init__": [EVERYTHING],
    "__main__": ["cli"],
}
FOR_TYPES_ONLY = {
    ("plan/flow.py", "millstream.jobs.job.Job"),
    ("plan/apps.py", "millstream.jobs.apps.job.AppJob"),
    ("expressions/column_texts.py", "pyspark.sql.Column"),
}
"""What a file names for type checkers without ever loading it."""
WITHOUT_SPARK = {
    "terminal",
    "readiness",
    "errors",
    "private_files",
    "sqlite_file",
    "secrets",
    "user_lines",
    "remote_folders",
    "webhdfs",
    "postgres_address",
    "records",
    "expressions",
    "sketches",
    "bloom_filters",
    "log",
    "plan",
    "state",
    "operators",
    "reference",
    "local",
    "metrics",
    "webhooks",
    "alerts",
    "connectors",
    "capture",
    "copies",
    "views",
    "events",
    "search",
    "serving",
    "bridges",
    "stored_queries",
    "stored_models",
    "calling",
}


def reachable(package: str) -> set[str]:
    """A package, what it may import, and what those may import."""
    found = {package}
    for allowed in MAY_IMPORT[package]:
        found |= set(MAY_IMPORT) if allowed == EVERYTHING else reachable(allowed)
    return found


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def without_types(tree: ast.Module, allowed: set[str]) -> ast.Module:
    """Drops the imports under `if TYPE_CHECKING:` that are allowed there."""
    for block in tree.body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            block.body = [
                each
                for each in block.body
                if not (
                    isinstance(each, ast.ImportFrom)
                    and {f"{each.module}.{alias.name}" for alias in each.names} <= allowed
                )
            ]
    return tree


def imported_modules(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every module a file imports, inside functions and for type checks too."""
    parents = ("millstream", *path.relative_to(ROOT).parts[:-1])
    for_types = {name for file, name in FOR_TYPES_ONLY if path == ROOT / file}
    for node in ast.walk(without_types(ast.parse(source), for_types)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def forbidden(path: Path, source: str) -> list[str]:
    package = package_of(path)
    if package not in MAY_IMPORT:
        return [f"{path}: the package '{package}' is not in the table"]
    wrong = []
    for line, module in imported_modules(path, source):
        name, *rest = module.split(".")
        target = rest[0] if name == "millstream" and rest else None
        if target is not None and target in MAY_IMPORT and target not in reachable(package):
            wrong.append(f"{path}:{line}: {package} may not import {module}")
        if name == "pyspark" and package in WITHOUT_SPARK:
            wrong.append(f"{path}:{line}: {package} must not import pyspark")
    return wrong


def test_every_package_imports_only_what_it_may() -> None:
    """Goal: the layering of docs/architecture.md holds. Method: read the imports of every file of the package."""
    wrong = [problem for path in sorted(ROOT.rglob("*.py")) for problem in forbidden(path, path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("records/schema.py", "from millstream.log import connect"),
        ("records/schema.py", "from millstream import log"),
        ("log/storage/segment.py", "def late():\n    import millstream.cli"),
        ("log/storage/segment.py", "from ...cli import main"),
        ("log/storage/frame.py", "import pyspark.sql"),
        ("unheard_of/x.py", "import os"),
        ("plan/flow.py", "from millstream.jobs.job import Job"),
        ("plan/flow.py", "if TYPE_CHECKING:\n    from millstream.jobs.job import run_job"),
    ],
)
def test_a_forbidden_import_is_found(file: str, source: str) -> None:
    """Goal: the test above can fail."""
    assert forbidden(ROOT / file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("log/storage/segment.py", "from millstream.records import Schema\nfrom millstream.errors import DamagedLog"),
        ("log/storage/segment.py", "from . import frame\nfrom millstream.log.storage.disk import Disk"),
        ("cli/topic_commands/topics.py", "from millstream.log import connect"),
        ("errors.py", "import os, sys"),
    ],
)
def test_an_allowed_import_is_not(file: str, source: str) -> None:
    assert not forbidden(ROOT / file, source)


BROKER_NEUTRAL = [
    "assignment",
    "batches",
    "buffer",
    "channel",
    "committing",
    "consumer",
    "consumer_settings",
    "offers",
    "ports",
    "producer",
    "queues",
    "sending",
    "start_positions",
    "subscription",
    "switches",
]


@pytest.mark.parametrize(
    ("files", "brokers"),
    [
        ([ROOT / "log" / f"{name}.py" for name in BROKER_NEUTRAL], ("embedded", "kafka")),
        (sorted((ROOT / "log" / "embedded").glob("*.py")), ("kafka",)),
        (sorted((ROOT / "log" / "kafka").glob("*.py")), ("embedded",)),
    ],
    ids=["neutral", "embedded", "kafka"],
)
def test_brokers_share_only_the_ports(files: list[Path], brokers: tuple[str, ...]) -> None:
    """Goal: consumer, producer and queue are written once, and no broker builds on the other."""
    forbidden_modules = tuple(f"millstream.log.{broker}" for broker in brokers)
    assert files
    for path in files:
        for line, module in imported_modules(path, path.read_text()):
            assert not module.startswith(forbidden_modules), f"{path}:{line} imports {module}"


def test_no_package_has_the_name_of_a_public_function() -> None:
    """Importing `millstream.x` sets `millstream.x`, whatever it was before. `millstream.errors` is a module."""
    inside = {each.name for each in pkgutil.iter_modules(millstream.__path__)}
    assert inside & {*millstream.__all__} == {"errors"}


# ---------------------------------------------------------------- the page that describes the packages

PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
ROW = re.compile(r"^\| `([a-z_]+)(?:/|\.py)` \|.*\| ([^|]*) \|$", re.MULTILINE)
ROOM = re.compile(r"^ ((?:[a-z_]+/)+)(?=\s|$|[a-z_]+\.py)")


def test_the_page_has_every_package_and_what_it_may_import() -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    modules = {path.stem for path in ROOT.glob("[a-z]*.py")}
    listed = dict(ROW.findall(PAGE))
    assert set(listed) == packages | modules
    for package, imported in listed.items():
        assert imported == (", ".join(MAY_IMPORT[package]) or "\N{EN DASH}"), package


def test_the_page_names_only_modules_that_exist() -> None:
    """A module is in the folder under which it stands on the page, or in one below it."""
    missing = []
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        room = ROOT
        for line in block.splitlines():
            if found := ROOM.match(line):
                room = ROOT / found[1]
            elif line[1:2].strip():
                room = ROOT
            names = re.findall(r"[a-z_0-9]+\.py", line)
            missing += [f"{room.relative_to(ROOT)}: {name}" for name in names if not any(room.rglob(name))]
    assert not missing


def test_the_page_shows_every_folder() -> None:
    blocks = "".join(re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    folders = [path for path in ROOT.rglob("*") if path.is_dir() and any(path.glob("[a-z]*.py"))]
    assert not [folder for folder in folders if f"{folder.name}/" not in blocks]
