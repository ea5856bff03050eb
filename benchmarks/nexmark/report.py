"""What a run found: as a table for a terminal, as a chart, and as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, log10
from typing import Any

from children import Answer
from rich.table import Table

from millstream.testing import svg

OURS, PEERS = "millstream", ("spark", "flink")
COLORS = {"millstream": "#2563eb", "spark": "#f59e0b", "flink": "#db2777"}
NAMES = {"millstream": "Millstream", "spark": "Spark", "flink": "Flink SQL"}
INK, PALE, PAPER = "#334155", "#e2e8f0", "#ffffff"
MIB = 1 << 20


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
    def said(self) -> str:
        if self.refused is not None:
            return "cannot"
        if self.failed is not None:
            return "failed"
        if self.wrong:
            return "wrong"
        speed = "right" if self.events_per_s is None else f"{self.events_per_s:,.0f}"
        return f"{speed}  {self.peak_bytes / MIB:,.0f} MiB" if self.peak_bytes else speed

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
        for column in ("query", *(NAMES[engine] for engine in self.engines), *(f"vs {NAMES[peer]}" for peer in peers)):
            table.add_column(column, justify="left" if column == "query" else "right")
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

LEFT, TOP, WIDE, BAR, GAP = 64, 66, 620, 8, 8


def drawn(title: str, engines: Sequence[str], by_query: Mapping[str, Mapping[str, Outcome]]) -> str:
    """A bar for each engine and query. Speeds lie far apart, so the axis is logarithmic."""
    speeds = [each.events_per_s for row in by_query.values() for each in row.values() if each.events_per_s]
    low = int(log10(min(speeds, default=1000)))
    high = max(int(log10(max(speeds, default=10_000))) + 1, low + 1)
    row = len(engines) * BAR + GAP
    bottom = TOP + row * len(by_query)
    parts = [svg.words(20, 28, title, size=15, fill=INK, font_weight=600)]
    for place, engine in enumerate(engines):
        left = LEFT + place * 130
        parts += [
            svg.box(left, 40, 10, 10, fill=COLORS[engine], rx=2),
            svg.words(left + 16, 49, NAMES[engine], fill=INK),
        ]
    for power in range(low, high + 1):
        x = LEFT + (power - low) / (high - low) * WIDE
        parts += [
            svg.line(x, TOP - 4, x, bottom, stroke=PALE),
            svg.words(x, bottom + 16, short(10**power), fill=INK, text_anchor="middle"),
        ]
    for number, (name, outcomes) in enumerate(by_query.items()):
        y = TOP + number * row
        parts.append(svg.words(LEFT - 10, y + row / 2, name, fill=INK, text_anchor="end"))
        for place, engine in enumerate(engines):
            parts.append(_bar(y + place * BAR, engine, outcomes[engine], low, high))
    parts.append(svg.words(LEFT + WIDE / 2, bottom + 34, "events a second", fill=INK, text_anchor="middle"))
    return svg.picture(LEFT + WIDE + 90, bottom + 48, parts, background=PAPER)


def _bar(y: float, engine: str, outcome: Outcome, low: int, high: int) -> str:
    if not outcome.events_per_s:
        why = outcome.said if outcome.refused or outcome.failed else ""
        return svg.words(LEFT + 3, y + BAR - 1, why, size=8, fill=COLORS[engine])
    wide = max((log10(outcome.events_per_s) - low) / (high - low) * WIDE, 1)
    return svg.group(
        [
            svg.box(LEFT, y, wide, BAR - 1, fill=COLORS[engine], rx=1),
            svg.words(LEFT + wide + 4, y + BAR - 1, short(outcome.events_per_s), size=8, fill=INK),
        ]
    )


def short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
