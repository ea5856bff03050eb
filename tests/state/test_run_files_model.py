"""Runs hold what a dictionary holds, whatever is put, deleted, merged and reopened, and though keys share a hash."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millstream.state import run_files as runs_module
from millstream.state import tables as tables_module
from millstream.state.run_files import Runs
from millstream.state.tables import NEVER
from properties import examples

from .run_rows import (
    EMPTY,
    KEYS,
    MARKS,
    START,
    Key,
    Row,
    counted,
    few_hashes,
    frame_of,
    keys_of,
    nothing_kept,
    weak_hashes,
)


@pytest.fixture(autouse=True)
def _no_open_runs() -> None:
    runs_module.opened.clear()


# ---------------------------------------------------------------- against a dictionary


users, places = st.none() | st.integers(0, 12), st.none() | st.sampled_from(["", "a", "a long name of a place"])
keys = st.tuples(users, places)
times = st.none() | st.integers(0, 30)


class StateMachine(RuleBasedStateMachine):
    """The model keeps, for every version, the rows of every key, and the deltas that lead to it."""

    hashes = staticmethod(few_hashes)

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="runs-"))
        self.real = tables_module.key_hashes
        tables_module.key_hashes = self.hashes
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(None, nothing_kept)
        self.version: str | None = None
        self.model: dict[str, dict[Key, list[Row]]] = {"windows": {}, "counters": {}}
        self.deltas: list[bytes] = []
        self.past: list[tuple[str | None, dict[str, dict[Key, list[Row]]], list[bytes]]] = []
        self.now = (0, 0)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            tables_module.key_hashes = self.real
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(
        asked=st.fixed_dictionaries(
            {}, optional={"windows": st.lists(keys, max_size=8), "counters": st.lists(keys, max_size=3)}
        ),
        forward=st.tuples(st.integers(0, 6), st.integers(0, 6)),
        news=st.lists(st.tuples(st.integers(0, 20), times, times, times), max_size=10),
        kept=st.sampled_from(["all", "none", "some"]),
        survives=st.booleans(),
    )
    def step(
        self,
        asked: dict[str, list[Key]],
        forward: tuple[int, int],
        news: list[tuple[int, int | None, int | None, int | None]],
        kept: str,
        survives: bool,
    ) -> None:
        before = self.now
        now = (before[0] + forward[0], before[1] + forward[1])
        held = self.runs.held({name: keys_of(found) for name, found in asked.items()}, before, now)
        touched = {name: self.touched(name, asked.get(name, []), before, now) for name in EMPTY}
        for name, frame in held.items():
            expected = [row for key in touched[name] for row in self.model[name].get(key, [])]
            assert counted(frame) == counted(frame_of(name, expected))
            assert frame.schema == EMPTY[name].schema
        changes: dict[str, dict[Key, list[Row]]] = {"windows": {}, "counters": {}}
        for name, found in touched.items():
            for number, key in enumerate(found):
                if kept == "all" or (kept == "some" and number % 2):
                    changes[name][key] = list(self.model[name].get(key, []))
        if touched["windows"]:
            for place, (start, event, clock, hold) in enumerate(news):
                key = touched["windows"][place % len(touched["windows"])]
                row = (*key, start, None if start > 15 else ["n"] * (start % 3), event, clock, hold)
                changes["windows"].setdefault(key, []).append(row)
        for key in touched["counters"]:
            changes["counters"][key] = [(*key, len(news), None)]
        frames = {
            name: frame_of(name, [row for rows in found.values() for row in rows]) for name, found in changes.items()
        }
        applied = self.runs.apply(frames, MARKS)
        if not survives:  # the step is lost before its version is known: it comes again
            self.runs = Runs(self.folder, KEYS, EMPTY)
            self.runs.open(self.version, lambda: iter(self.deltas))
            return
        self.past.append((self.version, self.model, self.deltas))
        self.model = {name: dict(found) for name, found in self.model.items()}
        for name, found in touched.items():
            for key in found:
                self.model[name].pop(key, None)
                if changes[name].get(key):
                    self.model[name][key] = changes[name][key]
        self.version, self.now = applied.version, now
        if applied.delta:
            self.deltas = [*self.deltas, applied.delta]
        rows = [row for found in self.model["windows"].values() for row in found]
        assert applied.next_event == min((row[4] for row in rows if row[4] is not None), default=NEVER)
        assert applied.next_clock == min((row[5] for row in rows if row[5] is not None), default=NEVER)
        assert applied.hold == min((row[6] for row in rows if row[6] is not None), default=NEVER)
        assert applied.rows == sum(len(found) for table in self.model.values() for found in table.values())

    def touched(self, name: str, asked: list[Key], before: tuple[int, int], now: tuple[int, int]) -> list[Key]:
        found = dict.fromkeys(asked)
        if name == "windows":
            for key, rows in self.model[name].items():
                for row in rows:
                    event_due = row[4] is not None and before[0] < row[4] <= now[0]
                    if event_due or (row[5] is not None and before[1] < row[5] <= now[1]):
                        found[key] = None
        return list(found)

    @rule(cold=st.booleans())
    def reopen(self, cold: bool) -> None:
        if cold:
            runs_module.opened.clear()
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(self.version, nothing_kept)

    @rule(
        spared=st.lists(st.booleans(), min_size=7, max_size=7),
        where=st.floats(0, 1, exclude_max=True),
        how=st.sampled_from(["lost", "emptied", "cut", "flipped"]),
    )
    def damage(self, spared: list[bool], where: float, how: str) -> None:
        """Some files are gone or wrong, as after a power cut."""
        runs_module.opened.clear()
        self.runs = Runs(self.folder, KEYS, EMPTY)
        files = sorted(self.folder.glob("*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for number, path in enumerate(files):
            if spared[number % len(spared)]:
                continue
            content = path.read_bytes() or b"-"
            at = int(where * len(content))
            path.unlink()
            if how == "emptied":
                path.write_bytes(b"")
            elif how == "cut":
                path.write_bytes(content[:at])
            elif how == "flipped":
                path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        self.runs.open(self.version, lambda: iter(self.deltas))

    @rule()
    def lose_all(self) -> None:
        runs_module.opened.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.runs = Runs(self.folder, KEYS, EMPTY)
        self.runs.open(self.version, lambda: iter(self.deltas))

    @rule()
    def snapshot(self) -> None:
        self.deltas = list(self.runs.snapshot())

    @precondition(lambda self: self.past)
    @rule(steps=st.integers(1, 3))
    def roll_back(self, steps: int) -> None:
        for _ in range(min(steps, len(self.past))):
            self.version, self.model, self.deltas = self.past.pop()
        self.runs.open(self.version, lambda: iter(self.deltas))

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "model"):
            return
        for name, model in self.model.items():
            asked = keys_of(list(model))
            found = self.runs.held({name: asked}, START, START)[name]
            assert counted(found) == counted(frame_of(name, [row for rows in model.values() for row in rows]))
            for key, rows in model.items():  # rows of one key stay in their order
                kept = [row for row in found.rows() if row[:2] == key]
                assert kept == rows


class WeakStateMachine(StateMachine):
    """Every hash is that of several keys."""

    hashes = staticmethod(weak_hashes)


@pytest.mark.property
@pytest.mark.parametrize("machine", [StateMachine, WeakStateMachine])
def test_runs_hold_what_a_dictionary_holds(machine: type[StateMachine]) -> None:
    run_state_machine_as_test(machine, settings=examples(50, stateful_step_count=25))


# ---------------------------------------------------------------- tables with keys of their own

SEEN = {"seen": pl.DataFrame(schema={"user": pl.Int64, "value": pl.String, "mask": pl.UInt64})}
SEEN_KEYS = {"seen": ["user", "value"]}
entries = st.dictionaries(st.tuples(st.integers(0, 3), st.none() | st.sampled_from("abc")), st.integers(0, 9))


def seen_frame(rows: dict[Key, int]) -> pl.DataFrame:
    return pl.DataFrame([(*key, mask) for key, mask in rows.items()], schema=SEEN["seen"].schema, orient="row")


@pytest.mark.property
@pytest.mark.parametrize("hashes", [few_hashes, weak_hashes])
def test_what_is_found_stays_unless_it_is_replaced(hashes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps ask for some entries and put others of them; in the end each has what was put last."""
    monkeypatch.setattr(tables_module, "key_hashes", hashes)

    @given(st.lists(st.tuples(entries, entries), max_size=8))
    def check(steps: list[tuple[dict[Key, int], dict[Key, int]]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder), ["user"], SEEN, SEEN_KEYS)
            runs.open(None, nothing_kept)
            model: dict[Key, int] = {}
            deltas: list[bytes] = []
            version = None
            for looked_at, put_ in steps:
                asked = {**looked_at, **put_}
                found = runs.held({"seen": seen_frame(asked)}, START, START)["seen"]
                assert {row[:2]: row[2] for row in found.rows()} == {k: m for k, m in model.items() if k in asked}
                applied = runs.apply({"seen": seen_frame(put_)}, {})
                model |= put_
                assert applied.rows == len(model)
                version, deltas = applied.version, deltas + ([applied.delta] if applied.delta else [])
            for given_, files in ((lambda: iter(deltas), False), (lambda: iter(deltas), True)):
                if not files:
                    shutil.rmtree(folder, ignore_errors=True)
                    runs_module.opened.clear()
                again = Runs(Path(folder), ["user"], SEEN, SEEN_KEYS)
                again.open(version, given_)
                everything = again.held({"seen": seen_frame(model)}, START, START)["seen"]
                assert {row[:2]: row[2] for row in everything.rows()} == model
            Path(folder).mkdir(exist_ok=True)

    check()
