"""A plan can be looked at: as text, as Mermaid, as SVG, the same every time."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

import millstream as ms
from millstream.plan.flow import Flow
from step_names import by_kind

SVG = "{http://www.w3.org/2000/svg}"


def built() -> Flow:
    flow = ms.Flow("team-scores")
    scores = flow.read("scores", "user string, score int, at timestamp", "at", ms.bounded("10 seconds"))
    clean = scores.map(lambda row: row, name="clean")
    good = clean.union(flow.read("more", "user string, score int, at timestamp", "at"))
    totals = (
        good.where("user <> 'a \"<b>\" #1' and score > 0")
        .key_by("user")
        .window(ms.fixed("2 minutes"), allowed_lateness="1 minute", timestamp="latest")
        .trigger(ms.after_watermark(late=ms.each()))
        .retracting()
        .agg(total=ms.sum("score"))
    )
    totals.write("totals")
    totals.late.write("late")
    clean.dead.write("dead")
    clean.select("user", twice="score * 2").write("twice")
    return flow


def test_text_has_every_step() -> None:
    text = by_kind(built().explain())
    assert text.startswith("flow team-scores\n")
    paragraph = next(part for part in text.split("\n\n") if part.startswith("agg\n"))
    lines = [line.strip() for line in paragraph.splitlines()]
    assert lines[1] == (
        "total=sum(score) per user in fixed(2 minutes), lateness 1 minute, at latest"
        " when after_watermark(late=each()), retracting"
    )
    assert lines[2] == "from     where"
    assert lines[3].startswith("columns  user string, window struct<start:timestamp,end:timestamp>")
    assert re.fullmatch(r"at       .*test_explain\.py:\d+", lines[4])
    assert "select user, score * 2 as twice" in text
    steps = re.findall(r"^(\S+)$", text, re.MULTILINE)
    assert steps.index("read_scores") < steps.index("clean") < steps.index("union") < steps.index("agg")


def test_a_table_without_a_key_is_all_rows_and_keeps_no_state() -> None:
    table = ms.Flow("f").read("a", "x int").to_table(name="bag")
    assert "bag\n    all rows\n    from     read_a\n    columns  x int\n" in table.explain()
    assert '["<b>bag</b><br/>all rows"]:::step' in table.explain("mermaid")
    assert "all rows" in table.explain("svg")


def test_a_stream_explains_what_leads_to_it() -> None:
    rows = ms.Flow("f").read("a", "x int")
    rows.where("x > 1")
    text = rows.select("x").explain()
    assert "select x" in text
    assert "where" not in text


def test_mermaid_escapes_and_connects() -> None:
    lines = built().explain("mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    labels = [line for line in lines if ":::" in line]
    for line in labels:
        inner = re.fullmatch(r'    s\d+(?:\(\[|\[\(|\[\[|\[)"(.*)"(?:\]\)|\)\]|\]\]|\]):::(\w+)', line)
        assert inner is not None, line
        assert not set('"[]{}|`') & set(inner[1])
        assert re.sub(r"</?b>|<br/>", "", inner[1]).count("<") == 0
    assert any("#34;#60;b#62;#34; #35;1" in line for line in labels)
    ids = {re.match(r"    (s\d+)", line)[1] for line in labels}  # type: ignore[index]
    arrows = [re.fullmatch(r"    (s\d+) (-->|-\.->) (s\d+)", line) for line in lines if "->" in line]
    assert all(arrow is not None and {arrow[1], arrow[3]} <= ids for arrow in arrows)
    assert sum(arrow[2] == "-.->" for arrow in arrows if arrow) == 2


def test_svg_is_well_formed_and_boxes_do_not_overlap() -> None:
    root = ElementTree.fromstring(built().explain("svg"))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = [
        tuple(float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
        for box in root.iter(f"{SVG}rect")
        if box.get("class") == "box"
    ]
    assert len(boxes) == 13
    for x, y, wide, high in boxes:
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
    for (x, y, wide, high), (a, b, c, d) in combinations(boxes, 2):
        assert x + wide <= a or a + c <= x or y + high <= b or b + d <= y
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "agg.late" in map(by_kind, words)


@pytest.mark.parametrize("format", ["text", "mermaid", "svg"])
def test_the_same_flow_is_explained_the_same(format: str) -> None:
    assert built().explain(format) == built().explain(format)  # type: ignore[arg-type]


def test_sources_whose_bad_records_stop_the_job_are_marked() -> None:
    flow = ms.Flow("f")
    alone = flow.read(ms.kafka("host", topic="a"), "x int")
    kept = flow.read(ms.kafka("host", topic="b"), "x int")
    raw = flow.read(ms.kafka("host", topic="c", format="bytes"), "value binary")
    for stream, into in ((alone, "d"), (kept, "e"), (kept.dead, "f"), (raw, "g")):
        stream.write(into)
    parts = {part.split("\n")[0]: part for part in flow.explain().split("\n\n")}
    marked = {name for name, part in parts.items() if "stops    at a record that cannot be decoded" in part}
    assert marked == {"read_kafka_a"}
    assert "stops" not in alone.explain()  # whether its dead letters are taken is not part of it
