"""Dead letters: over HTTP, and in a real browser: seen, explained, rehearsed with a fixed flow, and sent again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import millstream as ms
from millstream.records import DEAD_LETTER_SCHEMA
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed
from provenance.recorded import Batch, at, record

from .axe import violations
from .conftest import Console
from .flows import HTML, planned_in
from .pictures import picture
from .test_time_plane import flow_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLOW = """
import millstream as ms

flow = ms.Flow("numbers")
marks = flow.read("marks", "score int", name="marks")
marks.write("numbers")
marks.dead.write("marks.dead")
"""
REASON = "column 'score': expected int, found \"three\""
BROKEN = [b'{"score": "three"}', HTML.encode()]


def with_letters(console: Console) -> None:
    """A job `numbers` with two dead letters, and a fixed file beside its own."""
    file = console.log.parent / "marks_flow.py"
    file.write_text(FLOW)
    (console.log.parent / "fixed.py").write_text(FLOW.replace("score int", "score string"))
    with ms.connect(console.log) as log:
        log.create_topic("marks", partitions=1)
    record(console.log, "numbers", "marks", "marks", [Batch(1, {0: [b'{"score": 1}', *BROKEN]})])
    with ms.connect(console.log) as log:
        log.create_topic("marks.dead", partitions=1, schema=DEAD_LETTER_SCHEMA)
        with log.producer() as producer:
            for offset, reason in ((1, REASON), (2, "not valid JSON")):
                origin = {"value": BROKEN[offset - 1], "topic": "marks", "partition": 0, "offset": offset}
                producer.send("marks.dead", {**origin, "reason": reason, "at": at(2)})
    job = JobSpecification("numbers", str(file), "numbers", folder=str(console.log.parent))
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    planned_in(console, flow_of(FLOW))


def test_letters_are_shown_and_sent_again_once(console: Console) -> None:
    with_letters(console)
    session = console.logged_in()
    assert console.ask("GET", "/v1/dead-letters", **session)[2] == [{"topic": "marks.dead", "job": "numbers"}]
    found = console.ask("GET", "/v1/dead-letters/marks.dead", **session)[2]
    assert {each["reason"]: each["letters"] for each in found["reasons"]} == {REASON: 1, "not valid JSON": 1}
    assert [each["offset"] for each in found["letters"]] == [1, 0]
    resend = "/v1/dead-letters/marks.dead/resend"
    for wrong in ({"partition": 0}, {"partition": "0", "offset": 1}):
        assert console.ask("POST", resend, json.dumps(wrong), **session)[0] == 400
    sent = [console.ask("POST", resend, body, **session)[2]["sent"] for body in ('{"partition": 0, "offset": 1}', "{}")]
    assert sent == [1, 1]
    assert console.ask("POST", resend, "{}", **session)[2] == {"sent": 0, "already_sent": 2, "expired": 0}
    assert [each["action"] for each in console.supervisor.store.audit()] == ["resend"] * 3
    assert console.ask("GET", "/v1/dead-letters/nothing", **session)[0] == 404
    wrong_file = json.dumps({"job": "numbers", "file": "fixed.py"})
    assert console.ask("POST", "/v1/dead-letters/marks.dead/rehearse", wrong_file, **session)[0] == 400


@pytest.mark.more
def test_letters_in_the_browser(console: Console, page: Page) -> None:
    with_letters(console)
    page.set_default_timeout(120_000)  # some answers are those of processes
    page.get_by_role("link", name="Dead letters").click()
    page.get_by_role("link", name="marks.dead").click()
    page.get_by_role("button", name="0/0").click()
    letter = page.get_by_role("region", name="Dead letter", exact=True)
    letter.get_by_text('{"score": "three"}').wait_for()
    letter.get_by_role("button", name="Why dead?").click()
    why = letter.get_by_role("region", name="Why dead?")
    why.get_by_text("batch").wait_for()
    with page.expect_download() as saved:
        why.get_by_role("button", name="Make a test of it").click()
    assert saved.value.suggested_filename == "test_dead_letter.py"
    exec(
        compile(saved.value.path().read_text(), "test_dead_letter.py", "exec"),
        test := {"__file__": "test_dead_letter.py"},
    )
    test["test_dead_letter"]()  # type: ignore[operator]
    page.get_by_label("File, if not").fill(str(console.log.parent / "fixed.py"))
    page.get_by_role("button", name="Rehearse").click()
    page.get_by_text("1 of 2 would be taken").wait_for()
    picture(page, "dead-letters")
    assert violations(page) == []
    page.get_by_role("row", name="0/0").get_by_role("button", name="Send again").click()
    page.get_by_text("sent 1 again").wait_for()
    page.get_by_role("button", name="Send all 1 again").click()
    page.get_by_role("row", name="0/1").get_by_text("sent again").wait_for()
    assert "taken over" not in page.title()
