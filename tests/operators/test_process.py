"""The operator of `process`: what it keeps, and what it does about functions that fail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl
import pytest

from millstream.errors import InvalidInput
from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import ORDER, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.process import KEYS, ProcessStep
from millstream.operators.stateful import DEAD, SENT, stateful
from millstream.plan.flow import Flow
from millstream.plan.nodes import Process
from millstream.plan.time.bundles import BEGINNING, END, micros
from times import t


def nothing(*_: Any) -> None:
    pass


def step_of(
    function: Callable[..., Any], on_timer: Any = nothing, schema: str = "n int", **options: Any
) -> ProcessStep:
    options.setdefault("order", "arrival")
    rows = Flow("f").read("rows", "k string, n int, tags array<string>, at timestamp", "at")
    node = rows.key_by("k").process(function, schema, on_timer=on_timer, name="step", **options).node
    assert isinstance(node, Process)
    step = stateful(node)
    assert isinstance(step, ProcessStep)
    return step


class Driver:
    """Plays bundles to one step; all that is held is given to it."""

    def __init__(self, step: ProcessStep) -> None:
        self.step = step
        self.held = step.tables()
        self.watermark, self.now, self.count = BEGINNING, 0, 0

    def run(self, *rows: tuple[Any, ...], watermark: float | None = None, now: float | None = None) -> Frames:
        node = self.step.node.inputs[0]
        values = [{"k": k, "n": n, "tags": None, "at": t(s), TIME: micros(t(s)), WEIGHT: 1} for k, n, s in rows]
        fed = self.step.fed(elementwise.frame_of(values, node), self.count)
        self.count += len(rows)
        before, self.watermark = self.watermark, self.watermark if watermark is None else micros(t(watermark))
        was, self.now = self.now, self.now if now is None else micros(t(now))
        self.held, sent = self.step.step(self.held, {"rows": fed}, Clock(before, self.watermark, was, self.now))
        assert self.held[KEYS].schema == self.step.tables()[KEYS].schema
        assert sent[SENT].columns == [*self.step.node.schema.names, TIME, WEIGHT]
        return sent

    def ns(self, *rows: tuple[Any, ...], **moved: Any) -> list[Any]:
        return self.run(*rows, **moved)[SENT]["n"].to_list()


def test_it_is_a_step_with_state() -> None:
    step = step_of(nothing)
    assert step.node.keeps_state
    assert not step.node.is_changing
    assert step.keys == ["key.k"]
    assert len(step.nothing["rows"]) == 0
    folded, fed = step.folded(elementwise.frame_of([], step.node.inputs[0]), 0, 0)
    assert folded is None
    assert fed.schema == step.nothing["rows"].schema


def test_the_marks_are_the_first_timers() -> None:
    def sets(row: dict[str, Any], key: Any) -> None:
        key.at_event_time(t(30), "later")
        key.at_event_time(t(20), "sooner")
        key.at_processing_time(t(40))

    driver = Driver(step_of(sets))
    driver.run(("a", 1, 0))
    marks = driver.step.marks(Clock(0, 0, 0, 0))[KEYS]
    assert driver.held[KEYS].select(e=marks.event, c=marks.clock).row(0) == (micros(t(20)), micros(t(40)))


def test_a_key_with_nothing_to_keep_is_not_kept() -> None:
    def fleeting(row: dict[str, Any], key: Any) -> None:
        key.state["n"] = row["n"]
        key.list("l")
        key.map("m")["x"] = 1
        key.at_event_time(t(9))
        if row["n"] == 0:
            key.clear()

    driver = Driver(step_of(fleeting))
    driver.run(("a", 1, 0), ("b", 1, 0), ("c", 0, 0))
    assert sorted(driver.held[KEYS]["key.k"]) == ["a", "b"]
    driver.run(("a", 0, 0))
    assert driver.held[KEYS]["key.k"].to_list() == ["b"]


def test_a_key_that_only_has_a_timer_is_kept_until_it_fires() -> None:
    driver = Driver(step_of(lambda row, key: key.at_event_time(t(5), "x")))
    driver.run(("a", 1, 0))
    assert len(driver.held[KEYS]) == 1
    driver.run(watermark=5)
    assert len(driver.held[KEYS]) == 0


def test_keys_without_rows_or_due_timers_stay_unchanged() -> None:
    called: list[str] = []

    def counts(row: dict[str, Any], key: Any) -> dict[str, Any]:
        called.append(key["k"])
        key.state["n"] = key.state.get("n", 0) + 1
        return {"n": key.state["n"]}

    driver = Driver(step_of(counts))
    driver.run(("a", 1, 0), ("b", 1, 0))
    before = driver.held[KEYS].filter(pl.col("key.k") == "b")
    driver.run(("a", 1, 0))
    assert driver.held[KEYS].filter(pl.col("key.k") == "b").equals(before)
    assert called == ["a", "b", "a"]
    assert driver.ns(("b", 1, 0), ("a", 1, 0)) == [2, 3]


def test_null_is_a_key() -> None:
    def counts(row: dict[str, Any], key: Any) -> dict[str, Any]:
        key.state["n"] = key.state.get("n", 0) + 1
        return {"n": key.state["n"]}

    driver = Driver(step_of(counts))
    assert driver.ns((None, 1, 0), ("", 1, 0), (None, 1, 0)) == [1, 1, 2]
    assert driver.ns((None, 1, 0), ("", 1, 0)) == [3, 2]


def test_rows_are_called_in_order_of_arrival_whatever_order_they_lie_in() -> None:
    seen: list[int] = []
    driver = Driver(step_of(lambda row, key: seen.append(row["n"])))
    node = driver.step.node.inputs[0]
    values = [{"k": "a", "n": n, "tags": [], "at": t(n), TIME: micros(t(n)), WEIGHT: 1} for n in range(5)]
    fed = driver.step.fed(elementwise.frame_of(values, node), 0)
    driver.step.step(driver.held, {"rows": fed.sort(ORDER, descending=True)}, Clock(BEGINNING, BEGINNING, 0, 0))
    assert seen == [0, 1, 2, 3, 4]


def test_what_was_sent_does_not_change_when_the_state_does() -> None:
    def gives(row: dict[str, Any], key: Any) -> Any:
        recent = key.list("recent")
        recent.append(row["n"])
        key.state["all"] = recent
        row = {"all": recent}
        yield row
        recent.append(0)
        row["all"] = None
        yield {"all": recent}

    driver = Driver(step_of(gives, schema="all array<int>"))
    sent = driver.run(("a", 1, 0), ("a", 2, 0))[SENT]
    assert sent["all"].to_list() == [[1], [1, 0], [1, 0, 2], [1, 0, 2, 0]]


def test_a_flat_row_that_is_changed_after_it_was_given_was_given_as_it_was() -> None:
    def gives(row: dict[str, Any], key: Any) -> Any:
        made = {"n": 1}
        yield made
        made["n"] = 2
        yield made

    assert Driver(step_of(gives)).ns(("a", 1, 0)) == [1, 2]


def test_values_that_cannot_be_kept_are_refused_with_the_step_and_the_key() -> None:
    def keeps(row: dict[str, Any], key: Any) -> None:
        key.state["lock"] = object()

    with pytest.raises(InvalidInput, match=r"the state of Key\(k='a'\) contains a object") as refused:
        Driver(step_of(keeps)).run(("a", 1, 0))
    assert "step 'step'" in str(refused.value.where)
    assert "store plain values" in str(refused.value.next_step)


def test_timers_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.operators.process.FIRINGS_MAX", 50)

    def again(tag: str, time: datetime, key: Any) -> None:
        key.at_event_time(time, tag)

    driver = Driver(step_of(lambda row, key: key.at_event_time(row["at"], "tick"), again))
    with pytest.raises(InvalidInput, match=r"fired more than .* times in one step, the last one 'tick'"):
        driver.run(("a", 1, 0), watermark=1)


def test_many_timers_that_set_no_others_all_fire() -> None:
    def sets(row: dict[str, Any], key: Any) -> None:
        for n in range(2_000):
            key.at_event_time(t(2_000 - n), str(n))

    driver = Driver(step_of(sets, lambda tag, time, key: {"n": int(tag)}))
    assert driver.ns(("a", 1, 0), watermark=5_000) == list(reversed(range(2_000)))


def test_timers_of_a_function_that_is_gone_are_dropped() -> None:
    driver = Driver(step_of(lambda row, key: key.at_event_time(t(5))))
    driver.run(("a", 1, 0))
    driver.step = step_of(nothing, None)
    assert driver.ns(watermark=9) == []
    assert len(driver.held[KEYS]) == 0


def test_the_end_of_time_wakes_only_keys_with_timers() -> None:
    driver = Driver(step_of(lambda row, key: key.state.update(n=1)))
    driver.run(("a", 1, 0))
    held, _ = driver.step.step(driver.held, driver.step.nothing, Clock(0, END, 0, 0))
    assert held[KEYS].equals(driver.held[KEYS])


def test_a_dead_row_is_the_row_as_it_came() -> None:
    def spoils(row: dict[str, Any], key: Any) -> None:
        row.clear()
        raise RuntimeError("no")

    (letter,) = Driver(step_of(spoils)).run(("a", 7, 3))[DEAD].to_dicts()
    assert b"'n': 7" in letter["value"]
    assert letter["reason"] == "step: RuntimeError: no"
    assert letter[TIME] == micros(t(3))
