"""The examples: their files, and what they print and store."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import millstream as ms

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(printed: str) -> list[tuple[str, ...]]:
    """The rows of the tables in it."""
    found = [re.split(r"\s*│\s*", line.strip()) for line in printed.splitlines() if line.strip().startswith("│")]
    return [tuple(row[1:-1]) for row in found]


def rows_of(folder: Path, topic: str) -> list[dict[str, Any]]:
    with ms.connect(folder) as log, log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]
