"""Nothing that a record, a file, a database or a network peer can influence is unpickled or evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream

ROOT = Path(millstream.__file__).parent
RUNS_WHAT_IT_READS = {"loads", "load", "Unpickler"}
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "jsonpickle"}
BUILTINS = {"eval", "exec", "__import__"}
ALLOWED = {
    "spark/query/data_source.py": "cloudpickle.loads",  # the user's flow, on its way from the driver to its own workers
    "spark/query/state_runner.py": "cloudpickle.loads",
    "spark/query/processor.py": "pickle.loads",
    "spark/query/plan_changes.py": "pickle.loads",  # a changed plan of a running app, in a folder of this user alone
}


def dangerous(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in BUILTINS:
            yield node.lineno, called.id
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id in MODULES
            and called.attr in RUNS_WHAT_IT_READS
        ):
            yield node.lineno, f"{called.value.id}.{called.attr}"


def names_taken_out(source: str) -> Iterator[tuple[int, str]]:
    """`from pickle import loads` would hide the call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] in MODULES:
            yield node.lineno, f"from {node.module} import …"


@pytest.mark.more
def test_only_the_users_flow_is_unpickled_and_only_by_its_own_workers() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        found += [f"{name}:{line}: {call}" for line, call in dangerous(source) if ALLOWED.get(name) != call]
        found += [f"{name}:{line}: {taken}" for line, taken in names_taken_out(source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source", ["pickle.loads(b)", "import cloudpickle\ncloudpickle.load(f)", "eval('1')", "marshal.loads(x)"]
)
def test_code_that_executes_its_input_is_found(source: str) -> None:
    assert list(dangerous(source))


def test_a_name_taken_out_of_such_a_module_is_found() -> None:
    assert list(names_taken_out("from pickle import loads as innocent"))
