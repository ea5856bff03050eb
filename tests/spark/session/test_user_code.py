"""What a plan holds of the user's own modules is sent by value: workers cannot import them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.plan.walking import in_order
from millstream.spark.session import user_code

CONNECTOR = """
from dataclasses import dataclass
from own_units import BATCH_ROWS
from millstream.connectors.connector import Connector

@dataclass(frozen=True)
class Numbers(Connector):
    count: int = BATCH_ROWS
    can_write = True
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module in the user's folder, which imports another one."""
    (tmp_path / "own_units.py").write_text("BATCH_ROWS = 7\n")
    (tmp_path / "own_numbers.py").write_text(CONNECTOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_numbers")
    for name in ("own_numbers", "own_units"):
        del sys.modules[name]


def test_a_connector_of_the_user_reaches_a_process_that_cannot_import_it(own: ModuleType) -> None:
    flow = ms.Flow("own")
    flow.read("numbers", "n int").write(own.Numbers())
    nodes = in_order(flow.outputs)
    assert list(user_code.modules(nodes)) == ["own_numbers.py", "own_units.py"]
    user_code.ship(nodes)
    try:
        pickled = cloudpickle.dumps(flow.outputs[0].sink)
    finally:
        cloudpickle.unregister_pickle_by_value(own)
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).count)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=pickled, capture_output=True, check=False)
    assert done.stdout.decode().strip() == "7", done.stderr.decode()
