"""What a run found: as a table for a terminal, as a chart, and as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from children import Answer
from rich.table import Table

from millstream.testing import svg

OURS, PEERS = "millstream", ("spark", "flink")
COLORS = {"millstream": "#2563eb", "spark": "#f59e0b", "flink": "#db2777"}
NAMES = {"millstream": "Millstream", "spark": "Spark", "flink": "Flink SQL"}
INK, PALE, PAPER = "#334155", "#e2e8f0", "#ffffff"
MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Outcome:
    """How one engine did on one query. `wrong` says what is wrong with its rows, "" that nothing is; None: unknown."""

    wrong: str | None = None
    refused: str | None = None
    failed: str | None = None
    events_per_s: float | None = None
    peak_bytes: int = 0

    def checked(self, answer: Answer, wrong: str | None) -> None:
        self.wrong, self.refused, self.failed = wrong, answer.refused, answer.failed

    def timed(self, answer: Answer) -> None:
        self.events_per_s, self.peak_bytes = answer.events_per_s, answer.peak_bytes
        self.refused = self.refused or answer.refused
        self.failed = self.failed or answer.failed

    @property
    def is_right(self) -> bool:
        return self.wrong == "" and self.failed is None

    @property
    def fault(self) -> str:
        """In a word, why it is not right."""
        if self.refused is not None:
            return "cannot"
        if self.failed is not None:
            return "failed"
        return "wrong" if self.wrong else ""

    @property
    def said(self) -> str:
        if self.fault or self.events_per_s is None:
            return self.fault or ("right" if self.is_right else "")
        return f"{short(self.events_per_s)} {self.peak_bytes / GIB:.1f} GiB"

    @property
    def figures(self) -> dict[str, Any]:
        known: dict[str, Any] = {"right": self.is_right}
        if self.events_per_s is not None:
            known |= {"events_per_s": round(self.events_per_s), "peak_mib": round(self.peak_bytes / MIB)}
        return known | {name: said for name in ("refused", "failed", "wrong") if (said := getattr(self, name))}


@dataclass
class Results:
    engines: Sequence[str]
    queries: Sequence[str]
    by_query: dict[str, dict[str, Outcome]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_query = {name: {engine: Outcome() for engine in self.engines} for name in self.queries}

    def speeds_vs(self, peer: str) -> dict[str, float]:
        """How many times as fast as a peer, for the queries that both do right."""
        found = {}
        for name, outcomes in self.by_query.items():
            ours, theirs = outcomes[OURS], outcomes.get(peer)
            if theirs and ours.is_right and theirs.is_right and ours.events_per_s and theirs.events_per_s:
                found[name] = ours.events_per_s / theirs.events_per_s
        return found

    def figures(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "queries": len(self.queries),
            "queries_right": sum(outcomes[OURS].is_right for outcomes in self.by_query.values()),
        }
        for peer in PEERS:
            speeds = self.speeds_vs(peer)
            if peer in self.engines:
                made[f"queries_right_{peer}"] = sum(outcomes[peer].is_right for outcomes in self.by_query.values())
            made[f"min_speed_vs_{peer}"] = round(min(speeds.values()), 3) if speeds else None
            made[f"geomean_speed_vs_{peer}"] = round(geomean(speeds.values()), 3) if speeds else None
        made["table"] = {
            name: {engine: outcome.figures for engine, outcome in outcomes.items()}
            for name, outcomes in self.by_query.items()
        }
        return made

    def table(self, title: str) -> Table:
        peers = self.engines[1:]
        table = Table(title=title)
        for engine in ("query", *self.engines):
            table.add_column(NAMES.get(engine, engine), justify="left" if engine == "query" else "right", no_wrap=True)
        for peer in peers:
            table.add_column(f"vs {NAMES[peer].split()[0]}", justify="right", no_wrap=True)
        ratios = {peer: self.speeds_vs(peer) for peer in peers}
        for name, outcomes in self.by_query.items():
            times = [f"{ratios[peer][name]:.2f}x" if name in ratios[peer] else "" for peer in peers]
            table.add_row(name, *(outcomes[engine].said for engine in self.engines), *times)
        return table

    def chart(self, title: str) -> str:
        return drawn(title, self.engines, self.by_query)


def geomean(values: Any) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


# ---------------------------------------------------------------- the chart

LEFT, TOP, WIDE, BAR, GAP, RIGHT = 56, 70, 620, 11, 9, 60
STEPS = (1, 2, 5)


def drawn(title: str, engines: Sequence[str], by_query: Mapping[str, Mapping[str, Outcome]]) -> str:
    """A bar for each engine and query. Speeds lie far apart, so the axis is logarithmic."""
    speeds = [each.events_per_s for row in by_query.values() for each in row.values() if each.events_per_s]
    ticks = marks(min(speeds, default=1000), max(speeds, default=10_000))
    row = len(engines) * BAR + GAP
    bottom = TOP + row * len(by_query)
    parts = [svg.words(LEFT, 28, title, size=15, fill=INK, font_weight=600)]
    for place, engine in enumerate(engines):
        left = LEFT + place * 120
        parts += [
            svg.box(left, 41, 11, 11, fill=COLORS[engine], rx=2),
            svg.words(left + 17, 51, NAMES[engine], size=12, fill=INK),
        ]
    for tick in ticks:
        x = LEFT + _wide(tick, ticks)
        parts += [
            svg.line(x, TOP - 6, x, bottom, stroke=PALE),
            svg.words(x, bottom + 16, short(tick), fill=INK, text_anchor="middle"),
        ]
    for number, (name, outcomes) in enumerate(by_query.items()):
        y = TOP + number * row
        middle = y + len(engines) * BAR / 2 + 4
        parts.append(svg.words(LEFT - 10, middle, name, size=12, fill=INK, text_anchor="end"))
        for place, engine in enumerate(engines):
            parts.append(_bar(y + place * BAR, engine, outcomes[engine], ticks))
    said = "events a second (each line is 2 or 2.5 times the one before)"
    parts.append(svg.words(LEFT + WIDE / 2, bottom + 34, said, fill=INK, text_anchor="middle"))
    return svg.picture(LEFT + WIDE + RIGHT, bottom + 48, parts, background=PAPER)


def marks(low: float, high: float) -> list[int]:
    """Round numbers, the first no more than `low`, the last no less than `high`, and two of them at least."""
    every = [step * 10**power for power in range(16) for step in STEPS]
    first = max((place for place, mark in enumerate(every) if mark <= low), default=0)
    last = next(place for place, mark in enumerate(every) if mark >= high and place > first)
    return every[first : last + 1]


def _wide(speed: float, ticks: Sequence[int]) -> float:
    return max(log(speed / ticks[0]) / log(ticks[-1] / ticks[0]) * WIDE, 0.0)


def _bar(y: float, engine: str, outcome: Outcome, ticks: Sequence[int]) -> str:
    """Its length is the speed; a speed of wrong rows is pale, and where there is none, words say why."""
    wide, speed = 2.0, ""
    if outcome.events_per_s:
        wide, speed = max(_wide(outcome.events_per_s, ticks), wide), short(outcome.events_per_s)
    pale = None if outcome.is_right or not outcome.events_per_s else 0.35
    said = speed if outcome.is_right else f"{speed} {outcome.fault}".strip()
    return svg.group(
        [
            svg.box(LEFT, y, wide, BAR - 1, fill=COLORS[engine], fill_opacity=pale, rx=1),
            svg.words(LEFT + wide + 4, y + BAR - 2, said, size=9, fill=INK),
        ]
    )


def short(number: float) -> str:
    """Three digits, as in 1.05M."""
    rounded = float(f"{number:.3g}")
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rounded >= size:
            return f"{rounded / size:.4g}{unit}"
    return f"{rounded:.0f}"
