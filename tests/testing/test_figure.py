"""A figure shows every element and every pane, inside its canvas; what it looks like is for eyes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.testing import Add, Clock, Partition, Watermark
from millstream.testing.axes import MINUTE, time_ticks
from millstream.testing.steps import Step

from .scores import at, played, row, scored, totals

SVG = "{http://www.w3.org/2000/svg}"
EARLY_AND_LATE = ms.after_watermark(early=ms.after("30 seconds"), late=ms.each())

GAME: list[Step] = [
    Clock(at(1)), scored(5, 0, 20),
    Clock(at(1, 40)), Watermark(at(1)),
    Clock(at(2)), scored(7, 1, 30),
    Clock(at(2, 40)), scored(4, 0, 40),
    Clock(at(3)), Watermark(None),
]  # fmt: skip


class Drawing:
    """A figure, read again."""

    def __init__(self, path: Path) -> None:
        self.root = ElementTree.parse(path).getroot()

    def marks(self, kind: str) -> list[ElementTree.Element]:
        groups = self.root.iter(f"{SVG}g")
        return [group for group in groups if kind in group.get("class", "").split()]

    def titles(self, kind: str) -> list[str]:
        return [group.findtext(f"{SVG}title") or "" for group in self.marks(kind)]

    def texts(self) -> list[str]:
        return [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def outside(self) -> list[str]:
        """Shapes that leave the canvas; the legend's are placed by a transform and left out."""
        width, height = float(self.root.get("width", 0)), float(self.root.get("height", 0))
        found = []
        for shape in self.root.iter():
            for x, y in _points(shape):
                if not (-0.1 <= x <= width + 0.1 and -9 <= y <= height + 0.1):
                    found.append(ElementTree.tostring(shape, encoding="unicode"))
        return found


def _points(shape: ElementTree.Element) -> list[tuple[float, float]]:
    def number(name: str) -> float:
        return float(shape.get(name, 0))

    kind = shape.tag.removeprefix(SVG)
    if kind == "circle":
        x, y, r = number("cx"), number("cy"), number("r")
        return [(x - min(r, x), y), (x + r, y)]
    if kind == "line":
        return [(number("x1"), max(0, number("y1"))), (number("x2"), max(0, number("y2")))]
    if kind == "rect":
        assert number("width") >= 0
        assert number("height") >= 0
        return [(number("x"), number("y")), (number("x") + number("width"), number("y") + number("height"))]
    if kind in ("polyline", "polygon"):
        return [(float(x), float(y)) for x, y in (pair.split(",") for pair in shape.get("points", "").split())]
    return [(number("x"), number("y"))] if kind == "text" else []


@pytest.fixture
def draw(tmp_path: Path) -> Any:
    def drawn(build: Any, steps: list[Step]) -> tuple[Drawing, list[Any]]:
        out = played(build, steps, draw=tmp_path / "figure.svg")
        return Drawing(tmp_path / "figure.svg"), out

    return drawn


def test_every_element_window_and_pane_is_drawn(draw: Any) -> None:
    picture, out = draw(lambda scores: totals(scores, trigger=EARLY_AND_LATE, allowed_lateness="1 hour"), GAME)
    rows = [found for step in out for found in step]
    assert len(picture.marks("element")) == 3
    assert len(picture.marks("pane")) == len(rows) == 5
    assert len(picture.marks("window")) == 2
    assert len(picture.marks("watermark")) == 1
    timings = sorted(found["pane"]["timing"] for found in rows)
    assert sorted(kind.get("class", "").split()[1] for kind in picture.marks("pane")) == timings
    assert picture.titles("behind") == ["4 of 12:00:40, came at 12:02:40, behind the watermark"]
    assert "late pane of 12:00 to 12:01: 9, at 12:02:40" in picture.titles("pane")
    assert not picture.outside()


def test_the_caption_answers_the_four_questions(draw: Any) -> None:
    picture, _ = draw(lambda scores: totals(scores, mode="discarding"), GAME)
    for said in ("what", "total=sum(score) per team", "where", "fixed(1 minute)", "when", "how", "discarding"):
        assert said in picture.texts()


def test_rows_that_are_too_late_are_crossed_out(draw: Any) -> None:
    picture, _ = draw(totals, GAME)
    assert picture.titles("lost") == ["4 of 12:00:40, came at 12:02:40, too late"]


def test_what_is_drawn_is_found_behind_late_and_other_steps(draw: Any) -> None:
    for build in (
        lambda scores: totals(scores).late,
        lambda scores: {"a": scores, "b": totals(scores).where("total > 0")},
    ):
        picture, _ = draw(build, GAME)
        assert len(picture.marks("element")) == 3
        assert len(picture.marks("lost")) == 1


def test_retractions_are_struck_out(draw: Any) -> None:
    def build(scores: Any) -> Any:
        return totals(scores, trigger=EARLY_AND_LATE, mode="retracting", allowed_lateness="1 hour")

    picture, out = draw(build, GAME)
    retracted = [found for step in out for found in step if found["weight"] < 0]
    assert len(picture.marks("retraction")) == len(retracted) == 3


def test_sessions_that_grow_and_merge(draw: Any) -> None:
    def build(scores: Any) -> Any:
        return totals(scores, window=ms.sessions("1 minute"), trigger=ms.each(), mode="retracting")

    picture, out = draw(build, [scored(1, 0), scored(2, 0, 30), scored(3, 3), scored(4, 1, 30), scored(5, 2, 20)])
    assert len(picture.marks("window")) == len({str(found["window"]) for step in out for found in step}) == 5
    assert not picture.outside()


def test_without_a_clock_steps_are_the_axis(draw: Any) -> None:
    picture, _ = draw(totals, [scored(5, 0, 20), Watermark(at(1)), scored(7, 1, 30), Watermark(None)])
    assert "step →" in picture.texts()
    assert not [line for line in picture.root.iter(f"{SVG}line") if line.get("class") == "ideal"]
    assert "on time pane of 12:00 to 12:01: 5, in step 1" in picture.titles("pane")
    assert not picture.outside()


def test_a_clock_that_is_set_after_the_first_rows_is_not_used_as_axis(draw: Any) -> None:
    """Goal: 56 years of empty paper are not drawn."""
    picture, _ = draw(totals, [scored(5, 0, 20), Clock(at(3)), scored(7, 0, 30), Watermark(None)])
    assert "step →" in picture.texts()


@pytest.mark.parametrize(
    "window",
    [
        ms.everything(),
        ms.rows(2),
        ms.delta_window("score", 2),
        ms.closed_by("score = 7"),
        ms.sliding("2 minutes", "30 seconds"),
        ms.calendar("day", tz="Europe/Berlin"),
        ms.fixed("1 minute", time="processing"),
        ms.sessions("10 seconds", time="processing"),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_clock", [True, False])
def test_every_window_can_be_drawn(draw: Any, window: Any, with_clock: bool) -> None:
    steps = [step for step in GAME if with_clock or not isinstance(step, Clock)]
    picture, out = draw(lambda scores: totals(scores, window=window), steps)
    assert len(picture.marks("element")) == 3
    assert len(picture.marks("pane")) == sum(len(step) for step in out)
    assert not picture.outside()


def test_a_panel_for_each_of_the_first_four_keys(draw: Any) -> None:
    teams = ["amber", "blue", "coral", "denim", "ebony", '<&">']
    picture, _ = draw(totals, [Add([row(n, 0, n, team) for n, team in enumerate(teams)]), Watermark(None)])
    assert [text for text in picture.texts() if text.startswith("team ")] == [
        'team <&">', "team amber", "team blue", "team coral"
    ]  # fmt: skip
    assert "and 2 more keys" in picture.texts()
    assert len(picture.marks("element")) == 4
    assert not picture.outside()


def test_many_elements_are_dots_without_labels(draw: Any) -> None:
    some = random.Random(1)
    rows = [row(some.randint(100, 999), some.randint(0, 9), some.randint(0, 59)) for _ in range(200)]
    picture, _ = draw(totals, [Clock(at(0)), Add(rows[:100]), Clock(at(5)), Add(rows[100:]), Watermark(None)])
    assert len(picture.marks("element")) == 200
    assert not [mark for mark in picture.marks("element") if mark.find(f"{SVG}text") is not None]
    assert not picture.outside()


def test_each_partition_has_a_line(draw: Any) -> None:
    steps = [scored(5, 0), Partition("a", Watermark(at(2))), Partition("b", Watermark(at(1)))]
    picture, _ = draw(totals, steps)
    assert picture.titles("partition") == ["watermark of partition a", "watermark of partition b"]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [Watermark(None)],
        [Clock(at(1)), Watermark(at(0))],
        [Add([{"team": None, "score": None, "at": None}])],
        [scored(5, 0)],
        [scored(5, 0), Watermark(at(0).replace(year=2200)), scored(5, 0)],
        [Add([row(12345678, 0)] * 12)],
    ],
)
def test_odd_scripts_can_be_drawn(draw: Any, steps: list[Step]) -> None:
    picture, _ = draw(totals, steps)
    assert not picture.outside()


def test_a_figure_is_the_same_every_time(draw: Any, tmp_path: Path) -> None:
    draw(totals, GAME)
    first = (tmp_path / "figure.svg").read_text()
    draw(totals, GAME)
    assert (tmp_path / "figure.svg").read_text() == first


def test_ticks_are_round_times() -> None:
    assert [text for _, text in time_ticks(0.5 * MINUTE, 9.5 * MINUTE, 5)] == ["00:02", "00:04", "00:06", "00:08"]
    assert [text for _, text in time_ticks(0, 2_000_000, 4)] == [
        "00:00:00",
        "00:00:00.5",
        "00:00:01",
        "00:00:01.5",
        "00:00:02",
    ]


def test_a_figure_can_be_drawn_without_a_file(tmp_path: Path) -> None:
    out = played(totals, GAME, draw=True)
    assert out == played(totals, GAME)
    assert out._repr_svg_().startswith("<svg")
    out.save(tmp_path / "saved.svg")
    played(totals, GAME, draw=tmp_path / "drawn.svg")
    assert (tmp_path / "saved.svg").read_text() == (tmp_path / "drawn.svg").read_text() == out.figure


def test_without_a_figure_there_is_nothing_to_save(tmp_path: Path) -> None:
    out = played(totals, GAME, draw=False)
    assert out._repr_svg_() is None
    with pytest.raises(InvalidInput, match="no figure was drawn"):
        out.save(tmp_path / "saved.svg")
    with pytest.raises(InvalidInput, match="SVG file"):
        played(totals, GAME, draw=True).save(tmp_path / "saved.png")
