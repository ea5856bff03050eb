"""Flows, streams and tables in a notebook: the plan, the columns and rows, with every content escaped."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.log import EmbeddedLog
from millstream.plan.shown.html import CELL_LENGTH_MAX, ROWS_SHOWN, rows_table, shown

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"
VOID = {"img", "br"}


class Tags(HTMLParser):
    """The elements of a document, its text, and whether they are nested properly."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    @property
    def names(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def drawings(self) -> list[str]:
        sources = [attributes["src"] or "" for tag, attributes in self.elements if tag == "img"]
        assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
        return [base64.b64decode(source.partition(",")[2]).decode() for source in sources]


def tags(shown_object: Any) -> Tags:
    found = Tags(shown_object._repr_html_())
    assert not found.names & {"script", "style", "link", "iframe"}
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    return found


@pytest.fixture
def flow(log: EmbeddedLog) -> ms.Flow:
    log.create_topic("scores", schema="user string, n int")
    with log.producer() as producer:
        producer.send("scores", {"user": ATTACK, "n": 1})
    return ms.Flow("shown", log=log.path)


def test_a_stream_shows_its_plan_and_columns(flow: ms.Flow) -> None:
    found = tags(flow.read("scores").where("n > 0", name="positive"))
    (drawing,) = found.drawings
    assert "positive" in drawing
    assert "stream positive of the flow shown" in found.text
    assert {"user", "string", "n", "int"} <= set(re.findall(r"\w+", found.text))


def test_a_table_is_called_one(flow: ms.Flow) -> None:
    assert "table per_user" in tags(flow.read("scores").group_by("user").agg(n=ms.count(), name="per_user")).text


def test_contents_of_records_are_escaped(flow: ms.Flow) -> None:
    stream = flow.read("scores")
    stream.preview()
    found = tags(stream)
    assert "<script>alert(1)</script>" in found.text
    assert "\x1b" not in found.text
    assert len(found.drawings) == 1


def test_a_flow_shows_its_outputs_and_the_rows_of_their_previews(flow: ms.Flow) -> None:
    assert "no output yet" in tags(flow).text
    stream = flow.read("scores").select("n")
    stream.write("copies")
    assert "rows of the last preview" not in tags(flow).text
    stream.preview()
    found = tags(flow)
    assert "write_copies" in found.text
    assert "rows of the last preview" in found.text
    assert "write copies" in found.drawings[0]


def test_only_the_last_rows_are_shown_and_long_values_are_cut() -> None:
    table = Tags(rows_table(["n"], [{"n": number} for number in range(100)], "rows"))
    assert f"the last {ROWS_SHOWN} of 100" in table.text
    assert "99" in table.text
    assert len(shown("x" * 1000)) == CELL_LENGTH_MAX


def test_values_are_written_as_people_write_them() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert shown({"start": noon, "end": None}) == "2026-01-31 12:00:00 to null"
    assert shown({"timing": "on_time", "index": 2, "first": False}) == "on time, 2"
    assert shown([1, None, 2.5]) == "[1, null, 2.5]"
    assert shown({"a": b"\xff"}) == r"a: b'\xff'"


def test_ipython_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys, millstream as ms; from millstream.terminal import in_notebook; "
        "ms.Flow('f').read('a', 'n int')._repr_html_(); assert not in_notebook(); assert 'IPython' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
