"""What a mask makes of rows, texts and errors; and which columns are masked, by the supervisor and by jobs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput, MillstreamError, NotFound
from millstream.jobs.versions.plan_document import write_plan
from millstream.log.storage.disk import write_document
from millstream.plan.shown import masks
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.supervision.mask import SIGN, Mask
from millstream.supervision.masking import Masking

MASK = Mask(frozenset(["email", "card_*"]), b"secret", frozenset(["orders"]))
SECRET = "ann@example.org"


@pytest.mark.parametrize(
    "row",
    [
        {"email": SECRET},
        {"Email": SECRET, "score": 3},
        {"customer": {"email": SECRET}},
        {"orders": [{"card_number": SECRET}]},
        {"key.email": SECRET},
        {"email": {"home": SECRET}, "note": f"write to {SECRET}"},
        {"body": json.dumps({"email": SECRET})},
        {"body": json.dumps({"body": json.dumps({"email": SECRET})})},
        {"body": json.dumps({"email": SECRET})[:-2]},
        {"line": f"GET /?email={SECRET}&x=1"},
    ],
)
def test_values_of_masked_columns_are_hidden(row: dict[str, Any]) -> None:
    shown = MASK.row(row)
    assert SECRET not in json.dumps(shown)
    assert SIGN in json.dumps(shown, ensure_ascii=False)
    assert shown.keys() == row.keys()


def test_other_values_stay() -> None:
    row = {"emails": 3, "user": "ann", "card": "visa", "email": None, "at": "email"}
    assert MASK.row(row) == row
    assert Mask(frozenset(), b"").row({"email": SECRET}) == {"email": SECRET}


def test_equal_values_have_the_same_sign() -> None:
    signs = [MASK.sign(each) for each in ("a", "a", "b", 1, "1")]
    assert signs[0] == signs[1] != signs[2]
    assert signs[3] == signs[4]
    assert Mask(MASK.columns, b"another").sign("a") != signs[0]


@pytest.mark.parametrize(
    "text",
    [
        f"the row email={SECRET} is wrong",
        f"Row(email='{SECRET}', score=3)",
        f'{{"email": "{SECRET}", "sco',
        f'said {{\\"email\\": \\"{SECRET}\\"}}',
        f"column 'email': expected int, found \"{SECRET}\"",
        f"Row(email=Row(home='x', work='{SECRET}'), score=3)",
        f"Row(email=['x', '{SECRET}'], score=3)",
        f"email=('x', '{SECRET}')",
        f'wrote {{"email": {{"home": "}}", "work": ["x", "{SECRET}"]}}}}',
        f'wrote {{\\"email\\": {{\\"home\\": \\"}}\\", \\"work\\": \\"{SECRET}\\"}}}}',
        f"wrote {{'email': {{'home': \"it's}}\", 'work': '{SECRET}'",
        f"email=[x, {SECRET}",
        f"email={{x) {SECRET}}}",
        f"email=[x]{SECRET}",
        f"email=b'{SECRET}'",
        f'wrote {{"email": "\\"ann\\" <{SECRET}>"}}',
        f'"email": {{\n  "home": "x",\n  "work": "{SECRET}"\n}}\n',
        f"--email={SECRET} -x",
    ],
)
def test_texts_do_not_tell_values(text: str) -> None:
    assert SECRET not in MASK.text(text)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("Row(email=Row(home='x', work=('y',)), score=3)", ", score=3)"),
        ('{"email": ["x", {"a": "]"}], "score": 3} is wrong', ', "score": 3} is wrong'),
        ("email=(x, y\nthe next line", "\nthe next line"),
        ('"GET /?email=x&a=1" 200', '&a=1" 200'),
        ('email="x" and more', " and more"),
        ('said {\\"email\\": \\"x\\", \\"score\\": 3}', ', \\"score\\": 3}'),
    ],
)
def test_what_follows_a_value_is_shown(text: str, after: str) -> None:
    shown = MASK.text(text)
    before = text.split("email")[0]
    assert shown.startswith(before + "email")
    assert re.fullmatch(SIGN + "[0-9a-f]{10}", shown[shown.index(SIGN) : len(shown) - len(after)])
    assert shown.endswith(after)


@pytest.mark.parametrize(
    "part",
    ["email=(\n", "email=[(", "email={'a\n", 'email="\\', "\\", "email=((((((((((((((((((((\n", "a-", "a.", "email "],
)
def test_the_time_of_masking_is_linear(part: str) -> None:
    """Method: CPU time of a text and of one eight times as long. Quadratic time would be 64 times as much."""

    def seconds(characters: int) -> float:
        text = part * (characters // len(part)) + " email=x"
        before = time.process_time()
        MASK.text(text)
        return time.process_time() - before

    short = min(seconds(4_000) for _ in range(3))
    assert seconds(32_000) < 24 * short + 0.05


def test_a_dead_record_without_columns_is_hidden() -> None:
    assert MASK.unread("orders", f"{SECRET},12") == f"{SIGN} (18 characters)"
    assert MASK.unread("lines", "a line") == "a line"
    assert SECRET not in MASK.reason("orders", f"column 'score': expected int, found \"{SECRET}\"")
    assert MASK.reason("orders", "column 'score' is missing") == "column 'score' is missing"
    assert MASK.key("7", {"card_id": 7}) == MASK.sign("7")
    assert MASK.key("12", {"card_id": 7}) == "12"


def planned(jobs: Path, job: str, masked: list[str], columns: list[str]) -> None:
    (jobs / job).mkdir(parents=True, exist_ok=True)
    steps = [{"name": "read", "topic": "orders", "columns": columns}]
    write_document(jobs / job / "plan.json", {"logical": steps, "masked": masked})


def test_columns_of_the_supervisor_and_of_all_plans_are_masked(tmp_path: Path) -> None:
    masking = Masking(["card_*"], tmp_path / "jobs", lambda: [tmp_path / "elsewhere" / "other"])
    assert masking.now().columns == {"card_*"}
    planned(tmp_path / "jobs", "orders", ["email"], ["email", "score"])
    planned(tmp_path / "elsewhere", "other", ["phone"], [])
    assert masking.now().columns == {"card_*", "email", "phone"}
    assert masking.now().unreadable == {"orders"}
    planned(tmp_path / "jobs", "orders", [], ["score"])
    assert (masking.now().columns, masking.now().unreadable) == ({"card_*", "phone"}, set())


def test_a_plan_that_cannot_be_read_is_still_known(tmp_path: Path) -> None:
    masking = Masking([], tmp_path, tuple)
    planned(tmp_path, "orders", ["email"], ["email", "score"])
    assert (masking.now().columns, masking.now().unreadable) == ({"email"}, {"orders"})
    (tmp_path / "orders" / "plan.json").write_text("{")
    assert (masking.now().columns, masking.now().unreadable) == ({"email"}, {"orders"})
    (tmp_path / "orders" / "plan.json").unlink()
    assert (masking.now().columns, masking.now().unreadable) == ({"email"}, {"orders"})
    planned(tmp_path, "orders", [], ["score"])
    assert masking.now().columns == set()


def test_a_topic_that_several_flows_read_is_masked(tmp_path: Path) -> None:
    masking = Masking(["email"], tmp_path, tuple)
    steps = [{"name": each, "topic": "orders", "columns": [each]} for each in ("email", "score")]
    (tmp_path / "a").mkdir()
    write_document(tmp_path / "a" / "plan.json", {"logical": steps, "masked": []})
    assert masking.now().unreadable == {"orders"}


def reading(name: str, topic: str, schema: str) -> ms.Flow:
    flow = ms.Flow(name)
    flow.read(topic, schema=schema).write(f"out.{name}")
    return flow


def test_topics_of_a_flow_that_does_not_run_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_masked", {"email": None})
    app = ms.app([reading("a", "scores", "n int"), reading("b", "orders", "email string")], name="both")
    runs, waiting = app.check()
    (tmp_path / "both").mkdir()
    write_plan(tmp_path / "both", "both", PhysicalPlan((runs,), 1), 1, [waiting])
    assert Masking([], tmp_path, tuple).now().unreadable == {"orders"}


def test_a_plan_with_masks_has_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PhysicalPlan(tuple(reading("a", "orders", "email string").check()), 1)
    monkeypatch.setattr(masks, "_masked", {})
    write_plan(tmp_path / "nowhere", "a", plan)
    monkeypatch.setattr(masks, "_masked", {"email": None})
    with pytest.raises(MillstreamError, match="nowhere"):
        write_plan(tmp_path / "nowhere", "a", plan)


def test_a_sign_stands_for_its_value(tmp_path: Path) -> None:
    masking = Masking(["email"], tmp_path, tuple)
    sign = masking.remembered(masking.now(), SECRET)
    assert (masking.meant(sign), masking.meant("red"), masking.meant(3)) == (SECRET, "red", 3)
    with pytest.raises(NotFound, match="is not known any more"):
        masking.meant(SIGN + "0000")


def test_a_flow_file_names_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_masked", {})
    ms.mask("email", "card_*")
    ms.mask("email")
    assert masks.masked_columns() == ["email", "card_*"]
    for wrong in ((), ("",), ("*",), ("a b",), (3,)):
        with pytest.raises(InvalidInput):
            ms.mask(*wrong)  # type: ignore[arg-type]
