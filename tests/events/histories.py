"""Writers whose histories are checked: what each tried, and what the store answered, one line per attempt in a file.

A line that says an append was begun is written before it, so that the file of a killed writer shows what may be stored.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.errors import WrongVersion
from millstream.events.store import EventStore


class Counter(ms.Aggregate):
    """With snapshots, so that a kill can come in the middle of one."""

    snapshot_every = 2

    def __init__(self) -> None:
        self.ids: list[str] = []

    @ms.event("Counted")
    def _counted(self, event: Any) -> None:
        self.ids.append(event.id)


def write(store: EventStore, who: str, appends: int, streams: int, diary: Path, *, forever: bool = False) -> None:
    """Appends to streams that others append to as well, each time with the version it has read."""
    chance = random.Random(who)
    number = 0
    with diary.open("a") as file:

        def note(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        while forever or number < appends:
            number += 1
            chosen = sorted({f"s{chance.randrange(streams)}" for _ in range(chance.choice((1, 1, 1, 2)))})
            aggregates = [store.load(Counter, stream) for stream in chosen]
            expected = {each.stream: each.version for each in aggregates}
            events = {
                stream: [f"{who}.{number}.{stream}.{i}" for i in range(chance.choice((1, 3)))] for stream in chosen
            }
            note(begun=events, expected=expected)
            try:
                done = store.append_together(
                    ms.Append(stream, [ms.Event("Counted", id=each) for each in ids], expected[stream])
                    for stream, ids in events.items()
                )
            except WrongVersion as refused:
                note(refused=refused.stream, current=refused.current_version)
                continue
            note(done={each.stream: each.version for each in done})
            if chance.random() < 0.2:
                store.snapshot(store.load(Counter, chosen[0]))


def write_in_process(address: str, name: str, who: str, appends: int, streams: int, diary: str, forever: bool) -> None:
    with ms.event_store(address, name) as store:
        write(store, who, appends, streams, Path(diary), forever=forever)


def write_for(seconds: float, processes: list[Any]) -> None:
    time.sleep(seconds)
    for process in processes:
        process.kill()
        process.join()


def check(store: EventStore, diaries: list[Path]) -> int:
    """No update lost, none doubled, versions without gaps; returns how many appends were recorded."""
    recorded: dict[str, list[str]] = defaultdict(list)
    for event in store.read_all():
        recorded[event.stream].append(event.id)
        assert event.version == len(recorded[event.stream]), "a gap, or a version twice"
    for stream, ids in recorded.items():
        assert len(set(ids)) == len(ids), "recorded twice"
        assert [event.id for event in store.read(stream)] == ids
        assert store.version(stream) == len(ids)
        assert store.load(Counter, stream).ids == ids, "a snapshot differs from the events"
    count, accounted = 0, set()
    for diary in diaries:
        lines = [json.loads(line) for line in diary.read_text().splitlines() if line.endswith("}")]
        for line, answer in zip(lines, [*lines, {}][1:], strict=True):
            if "begun" not in line:
                continue
            found = {stream: _placed(recorded[stream], ids) for stream, ids in line["begun"].items()}
            accounted |= {each for ids in line["begun"].values() for each in ids}
            if "done" in answer:
                assert found == line["expected"], "an acknowledged append is lost, torn, or overtook another"
                assert answer["done"] == {
                    stream: line["expected"][stream] + len(ids) for stream, ids in line["begun"].items()
                }
            elif "refused" in answer:
                assert set(found.values()) == {None}, "a refused append is recorded"
                assert answer["current"] != line["expected"][answer["refused"]]
            else:  # killed: recorded as a whole, or not at all
                assert found == line["expected"] or set(found.values()) == {None}
            count += None not in found.values()
    assert accounted >= {each for ids in recorded.values() for each in ids}, "an event that nobody has appended"
    return count


def _placed(recorded: list[str], ids: list[str]) -> int | None:
    """The version before these events, if they are recorded one after the other."""
    if not set(ids) & set(recorded):
        return None
    start = recorded.index(ids[0])
    assert recorded[start : start + len(ids)] == ids, "an append is torn"
    return start
