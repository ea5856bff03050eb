"""The time plane of a windowed step: repeated from the job's batches as they complete, and drawn in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed
from millstream.web_console.why import question_of
from provenance.recorded import SCHEMA, Batch, record, score
from waiting import until

from .axe import violations
from .conftest import Console
from .flows import planned_in
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLOW = f"""
import millstream as ms

print("the file prints something")
flow = ms.Flow("totals")
scores = flow.read("scores", "{SCHEMA}", event_time="at", watermark=ms.bounded("10 seconds"), name="scores")
trigger = ms.after_watermark(early=ms.after_count(2), late=ms.each())
windows = scores.key_by("team").window(ms.fixed("1 minute"), allowed_lateness="1 minute").trigger(trigger)
totals = windows.agg(total=ms.sum("score"))
totals.write("totals")
"""
BATCHES = [
    Batch(1, {0: [score("red", 1, 1), score("red", 2, 5)]}),
    Batch(30, {0: [score("blue", 4, 20), score("red", 8, 31)]}),
    Batch(75, {0: [score("blue", 1, 72)]}),
    Batch(81, {0: [score("red", 16, 40), score("blue", 2, 80)]}),
    Batch(200, {0: [score("blue", 1, 199)]}),
    Batch(205, {0: [score("red", 1, 7)]}),
]


def recorded(console: Console) -> None:
    """A job `totals` that has run."""
    file = console.log.parent / "flow.py"
    file.write_text(FLOW)
    with ms.connect(console.log) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
    record(console.log, "totals", "scores", "scores", BATCHES)
    job = JobSpecification("totals", str(file), "totals", folder=str(console.log.parent))
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    planned_in(console, flow_of(FLOW))


def completes_another(console: Console, seconds: int = 1) -> None:
    """The job completes a batch without rows."""
    folder = console.supervisor.jobs / "totals" / "checkpoint"
    end = json.loads((folder / "offsets" / "5").read_text().splitlines()[2])
    (folder / "offsets" / "6").write_text("v1\n{}\n" + json.dumps({**end, "clock": end["clock"] + seconds * 1_000_000}))
    (folder / "commits" / "6").write_text('v1\n{"nextBatchWatermarkMs":0}')


def flow_of(code: str) -> ms.Flow:
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    found: ms.Flow = namespace["flow"]
    return found


@pytest.mark.more
def test_batches_are_repeated_as_they_complete(console: Console) -> None:
    recorded(console)
    session = console.logged_in()
    found: list[dict[str, Any]] = []
    offset = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal offset
        status, _, answer = console.ask("GET", f"/v1/jobs/totals/plane?offset={offset}", **session)
        assert status == 200, answer
        found.extend(answer["batches"])
        offset = answer["next"]
        return found

    until(lambda: len(ask()) == len(BATCHES), "all batches are repeated")
    assert [batch["count"] for batch in found] == [2, 2, 1, 2, 1, 1]
    panes = [(pane[2], pane[4], pane[5]) for batch in found for pane in batch["panes"]]
    assert sorted(panes) == [
        ("early", "blue", "3"),
        ("early", "red", "3"),
        ("late", "red", "27"),
        ("on_time", "blue", "3"),
        ("on_time", "blue", "4"),
        ("on_time", "red", "11"),
    ]
    assert [batch["late_count"] for batch in found] == [0, 0, 0, 0, 0, 1]
    assert found[0]["watermark"] == found[0]["rows"][-1][0] - 10_000
    completes_another(console)
    until(lambda: len(ask()) == len(BATCHES) + 1, "the next batch is repeated")
    assert found[-1]["batch"] == 6


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({}, "ask one question at a time"),
        ({"bound": "1 second", "late": '["scores", 0, 1]'}, "ask one question at a time"),
        ({"late": '["scores", "0", 1]'}, "late is a topic, a partition and an offset"),
        ({"pane": "[]"}, "a pane is a JSON object"),
        ({"pane": "{"}, "a pane is a JSON object"),
        ({"broker": "elsewhere"}, "'broker' is no part of a question"),
    ],
)
def test_wrong_questions_are_refused(asked: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(what)):
        question_of(asked)


@pytest.mark.more
def test_what_cannot_be_repeated_is_refused(console: Console) -> None:
    recorded(console)
    session = console.logged_in()

    def refused() -> Any:
        status, _, answer = console.ask("GET", "/v1/jobs/totals/plane?step=other", **session)
        return answer["error"] if status == 400 else None

    assert until(refused, "the step is refused")["what"] == "the flow 'totals' has no windowed step 'other'"
    assert console.ask("GET", "/v1/jobs/other/plane", **session)[0] == 404


def click_pane(page: Page) -> None:
    """The late pane of red, where it is drawn: the view spans 0 to 199 s of event time, 1 to 205 s of the clock."""
    plane = page.locator("canvas.plane")
    box = plane.bounding_box()
    assert box is not None
    left, top, right, bottom = 74, 10, 12, 40
    x = left + (box["width"] - left - right) * (30 + 199 * 0.04) / (199 * 1.08)
    y = top + (box["height"] - top - bottom) * (1 - (81 - 1 + 204 * 0.04) / (204 * 1.08))
    plane.click(position={"x": x, "y": y})


def explained(page: Page) -> None:
    """Why the pane that was clicked, why the late row, and what another bound would have meant; then a test of it."""
    page.set_default_timeout(120_000)  # each answer is that of a process, with the lowest priority
    why = page.get_by_role("region", name="Why this pane?")
    why.get_by_role("row", name="scores 0 5 3 new").wait_for()
    why.get_by_role("row", name="total 11 27").wait_for()
    picture(page, "why-pane")
    assert violations(page) == []
    with page.expect_download() as saved:
        why.get_by_role("button", name="Make a test of it").click()
    written = saved.value.path().read_text()
    assert saved.value.suggested_filename == "test_pane.py"
    test: dict[str, Any] = {"__file__": "test_pane.py"}
    exec(compile(written, "test_pane.py", "exec"), test)
    test["test_pane"]()
    page.get_by_role("button", name="Why late?").click()
    late = page.get_by_role("region", name="Why late?")
    late.get_by_text("1 minute 9 seconds").first.wait_for()
    with page.expect_download() as saved:
        late.get_by_role("button", name="Make a test of it").click()
    assert saved.value.suggested_filename == "test_late_row.py"
    exec(compile(saved.value.path().read_text(), "test_late_row.py", "exec"), test := {"__file__": "test_late_row.py"})
    test["test_late_row"]()  # type: ignore[operator]
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Bound of the watermark").fill("3 minutes")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("row", name="3 minutes 9 0 0.00 %").wait_for()


def several_keys(page: Page) -> None:
    """Chosen together, found by a part of their name, and all of them again."""
    panes = page.get_by_role("region", name="Newest panes")
    page.get_by_text("Keys: red").click()
    page.get_by_label("Search keys").fill("bl")
    until(lambda: page.get_by_role("checkbox").count() == 1, "the key that was searched for")
    page.get_by_label("blue", exact=True).check()
    page.get_by_text("Keys: red, blue").wait_for()
    panes.get_by_role("cell", name="blue").first.wait_for()
    panes.get_by_role("cell", name="red").first.wait_for()
    picture(page, "time-plane-keys")
    assert violations(page) == []
    page.get_by_role("button", name="Show all keys").click()
    page.get_by_text("Keys: all 2").click()


@pytest.mark.more
def test_the_plane_is_drawn(console: Console, page: Page) -> None:
    recorded(console)
    page.get_by_role("link", name="totals").click()
    page.get_by_role("link", name="Time plane").click()
    page.get_by_text("batch 5: 9 rows, 9 drawn, 1 late").wait_for()
    page.get_by_label("Shows").select_option("everything")
    page.get_by_text("Keys: all 2").click()
    page.get_by_label("red", exact=True).check()
    page.get_by_text("Keys: red").click()
    page.get_by_role("cell", name="27").wait_for()
    picture(page, "time-plane")
    assert violations(page) == []
    click_pane(page)
    explained(page)
    several_keys(page)
    plane = page.locator("canvas.plane")
    before = plane.screenshot()
    plane.focus()
    page.keyboard.press("+")
    page.get_by_role("button", name="Follow").wait_for()
    page.keyboard.press("ArrowDown")
    until(lambda: plane.screenshot() != before, "the plane is drawn nearer")
    page.get_by_role("button", name="Follow").click()
    page.get_by_role("button", name="Pause").wait_for()
    assert violations(page) == []


@dataclass(frozen=True)
class View:
    """What the plane shows: times in milliseconds."""

    left: int
    right: int
    bottom: int
    top: int

    @classmethod
    def of(cls, page: Page) -> View:
        return cls(*map(int, (page.locator("canvas.plane").get_attribute("data-view") or "").split()))

    @property
    def size(self) -> tuple[int, int]:
        return self.right - self.left, self.top - self.bottom

    def is_like(self, other: View) -> bool:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return all(abs(one - another) <= 3 for one, another in pairs)  # times are rounded


def looks(page: Page, wanted: Callable[[View], bool], what: str) -> View:
    until(lambda: wanted(View.of(page)), what)
    return View.of(page)


def with_the_mouse(page: Page, whole: View) -> None:
    """Scrolling zooms at the pointer, and dragging moves what is below it; neither asks why."""
    box = page.locator("canvas.plane").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -100)
    near = looks(page, lambda view: view.size[0] < whole.size[0], "scrolling zooms")
    assert whole.left < near.left < near.right < whole.right
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    dragged = looks(page, lambda view: view.right < near.right, "dragging moves")
    assert (dragged.bottom, dragged.top) == (near.bottom, near.top)
    assert page.get_by_role("region", name="Why").count() == 0


@pytest.mark.more
def test_the_plane_is_paused_moved_and_zoomed(console: Console, page: Page) -> None:
    recorded(console)
    page.goto(f"{console.url}/console/#/jobs/totals/plane")
    page.get_by_text("batch 5: 9 rows, 9 drawn, 1 late").wait_for()
    page.get_by_label("Shows").select_option("everything")
    whole = looks(page, lambda view: view.size[1] > 200_000, "all batches are in view")
    page.get_by_role("button", name="Zoom in").click()
    near = looks(page, lambda view: view.size < whole.size, "it is zoomed")
    assert [round(one / other, 2) for one, other in zip(whole.size, near.size, strict=True)] == [1.5, 1.5]
    page.get_by_role("button", name="Earlier").click()
    earlier = looks(page, lambda view: view.top < near.top, "it goes back in time")
    assert (earlier.left, earlier.right, earlier.top - near.top) == (near.left, near.right, round(-near.size[1] / 2))
    page.get_by_role("button", name="Later").click()
    looks(page, near.is_like, "it returns")
    page.get_by_role("button", name="Zoom out").click()
    looks(page, whole.is_like, "it is as it was")
    page.get_by_role("button", name="Follow").click()
    page.get_by_role("button", name="Pause").click()
    completes_another(console, seconds=60)
    page.get_by_text("batch 6: 9 rows").wait_for()
    looks(page, whole.is_like, "the paused view stays, whatever comes")
    page.get_by_role("button", name="Follow").click()
    newer = looks(page, lambda view: view.top > whole.top + 59_000, "it follows")
    with_the_mouse(page, newer)
    page.locator("canvas.plane").focus()
    page.keyboard.press(" ")
    looks(page, newer.is_like, "the space bar follows again")
    page.get_by_label("Shows").select_option("30 seconds")
    looks(page, lambda view: view.size[1] < 35_000, "the last half minute is in view")
