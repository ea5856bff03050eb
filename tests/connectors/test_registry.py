"""Connectors by name: Millstream's own, and those of other packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import millstream as ms
from millstream.connectors.registry import BUILT_IN, endpoint_of
from millstream.errors import InvalidInput, InvalidPlan

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"
FLOW = """
    import json
    import sqlite3
    import millstream as ms
    from contextlib import closing
    from millstream.errors import StartOverRefused

    with closing(sqlite3.connect("shop.db")) as db, db:
        db.execute("CREATE TABLE orders (product TEXT, amount INTEGER)")
        db.executemany("INSERT INTO orders VALUES (?, ?)", [("tea", number) for number in range(3000)])

    for _ in range(2):
        flow = ms.Flow("large-orders")
        orders = flow.read(ms.connector("outbox", path="shop.db", table="orders"), "product string, amount int")
        orders.where("amount >= 1000").write(ms.connector("outbox", "shop.db", "large"))
        flow.run(until="caught up", progress="none", batch_rows=1000)
        with closing(sqlite3.connect("shop.db")) as db, db:
            amounts = [amount for (amount,) in db.execute("SELECT amount FROM large")]
            db.executemany("INSERT INTO orders VALUES (?, ?)", [("tea", 3000), ("milk", 7)])
        print(json.dumps([len(amounts), len(set(amounts)), max(amounts)]))
    try:
        flow.run(until="caught up", progress="none", start_over=True)
    except StartOverRefused as refused:
        print(json.dumps(refused.what))
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """The connector of the documentation as an installed package: its folder."""
    source, project = PAGE.read_text().split("```python\n")[1], PAGE.read_text().split("```text\n[project]")[1]
    package = tmp_path / "package"
    package.mkdir()
    (package / "millstream_outbox.py").write_text(source.partition("```")[0])
    build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
    modules = '\n[tool.setuptools]\npy-modules = ["millstream_outbox"]\n'
    (package / "pyproject.toml").write_text(f"{build}[project]{project.partition('```')[0]}{modules}")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", tmp_path / "plugins", package]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return tmp_path / "plugins"


@pytest.mark.more
@pytest.mark.own_processes
def test_a_connector_of_another_package_runs_on_spark(plugins: Path, tmp_path: Path) -> None:
    paths = [str(plugins), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FLOW)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second, refused = (json.loads(line) for line in done.stdout.splitlines())
    assert (first, second) == ([2000, 2000, 2999], [2001, 2001, 3000])
    assert refused == "Millstream cannot undo what outbox did with the rows"


def test_every_connector_is_found_by_its_name(tmp_path: Path) -> None:
    assert ms.connector("files", tmp_path, "json") == ms.files(tmp_path, "json")
    assert str(ms.connector("topic", "scores")) == "scores"
    for name in BUILT_IN.keys() - {"topic"}:
        assert getattr(ms, name).__name__ == name


def test_an_unknown_connector_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput) as refused:
        ms.connector("filse", "data")
    assert "there is no connector 'filse'" in refused.value.what
    assert "files" in (refused.value.next_step or "")


@pytest.mark.parametrize("given", [17, object, {"topic": "scores"}])
def test_an_invalid_endpoint_is_refused_in_the_call_that_names_it(given: object) -> None:
    flow = ms.Flow("f")
    for call in (lambda: flow.read(given, "n int"), lambda: flow.read("in", "n int").write(given)):
        with pytest.raises(InvalidInput, match="is not a topic name, source or sink"):
            call()


def test_a_read_only_source_is_not_a_sink() -> None:
    with pytest.raises(InvalidPlan, match="can only be read, not written"):
        ms.Flow("f").read("in", "n int").write(ms.rate(1))


def test_a_name_stands_for_a_topic() -> None:
    assert (endpoint_of("scores").topic_name, endpoint_of("scores").broker_topic) == ("scores", "scores")
    assert (ms.kafka(topic="scores").topic_name, ms.kafka(topic="scores").broker_topic) == ("scores", None)
