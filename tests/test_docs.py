"""Every code block of the documentation runs: Python and shell in order, page by page, in an empty folder.

A block of `text` right behind one that was run is what it must print. Where a page says `localhost:9092`, its blocks
talk to a real Kafka.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {"python", "sh"}
KAFKA = "localhost:9092"
READ_FIRST = {"README.md"}
SPARK = re.compile(r"\.(run|start|replay|to_dataframe|explain)\(|\bspark\b")


@dataclass(frozen=True)
class Block:
    language: str
    source: str
    line: int
    prints: str | None


def blocks(text: str) -> Iterator[Block]:
    fences = list(FENCE.finditer(text))
    for fence, following in zip_longest(fences, fences[1:]):
        close = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        line = text.count("\n", 0, fence.start()) + 1
        yield Block(fence[1], fence[2], line, following[2] if close and following else None)


def run_python(source: str, names: dict[str, object], page: Path, line: int) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * line + source, str(page), "exec"), names)
    return printed.getvalue()


def run_shell(source: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", source], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def of_its_kind(page: Path) -> object:
    """Only pages whose Python runs Spark share sessions; what a shell starts has its own.

    Of the pages that start Spark, Kafka or programs, `make test` runs the README, and `make test-more` the others.
    """
    text = page.read_text()
    python = "".join(block.source for block in blocks(text) if block.language == "python")
    shell = "".join(block.source for block in blocks(text) if block.language == "sh")
    on_spark = SPARK.search(python)
    if on_spark:  # a page with Kafka is in the group that has brokers
        marks = [pytest.mark.xdist_group("spark" if KAFKA in text else "spark2")]
    else:
        marks = [pytest.mark.own_processes]
        if KAFKA in text:
            marks.append(pytest.mark.xdist_group("kafka"))
    if page.name not in READ_FIRST and (on_spark or shell or KAFKA in text):
        marks.append(pytest.mark.more)
    return pytest.param(page, id=page.name, marks=marks)


@pytest.mark.timeout(900)  # a page may start Spark and Kafka several times
@pytest.mark.parametrize("page", [of_its_kind(page) for page in PAGES])
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_BROKER", "")  # and taken back in the end, if a page sets it
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    if KAFKA in text:
        text = text.replace(KAFKA, request.getfixturevalue("kafka").bootstrap)
    for block in blocks(text):
        if block.language in RUN:
            python = block.language == "python"
            printed = run_python(block.source, names, page, block.line) if python else run_shell(block.source)
            if block.prints is not None:
                assert printed == block.prints, f"{page.name}, line {block.line}"
        else:
            assert block.language == "text", f"{page.name}, line {block.line}: a block in {block.language!r} is not run"
