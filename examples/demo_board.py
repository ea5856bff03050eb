"""The demo's view of its flow, updated by the batches of the job, and the screen that shows it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

WINDOW, LATENESS = timedelta(seconds=10), timedelta(seconds=15)
COLUMNS, EVENTS = 4, 6
FRESH_S = 1.5
RATE_S = 5.0
LOOKS = {"early": ("yellow", "…"), "on_time": ("green", "✓"), "late": ("magenta", "✚")}
WORDS = {"early": "early", "on_time": "on time", "late": "late"}


@dataclass
class Cell:
    """The current result of a pump and window, and the one it replaced."""

    litres: int
    timing: str
    before: int | None
    changed_at: float


@dataclass
class Phase:
    text: str
    began_at: float
    ended_at: float | None = None


@dataclass
class Board:
    """Everything that is shown. Batches arrive in one thread, and another draws; every field has one writer."""

    pumps: list[str]
    began_at: float = field(default_factory=time.monotonic)
    phases: list[Phase] = field(default_factory=list)
    fleet: dict[str, Any] = field(default_factory=lambda: {"sent": 0, "broken": 0, "litres": 0, "silent": []})
    cells: dict[tuple[str, datetime], Cell] = field(default_factory=dict)
    panes: Counter[str] = field(default_factory=Counter)
    litres: int = 0
    readings: int = 0
    late: int = 0
    dead: int = 0
    read: int = 0
    lag: int = 0
    batch: int = -1
    watermark: datetime | None = None
    ending: bool = False
    console: str = ""
    """The link that opens the console in a browser."""
    _events: deque[tuple[datetime, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    _reads: deque[tuple[float, int]] = field(default_factory=deque)

    # ------------------------------------------------------------ what happens

    def phase(self, text: str) -> None:
        now = time.monotonic()
        if self.phases:
            self.phases[-1].ended_at = now
        self.phases.append(Phase(text, now))

    def tell(self, event: str) -> None:
        self._events.append((datetime.now(), event))

    def fleet_said(self, said: dict[str, Any]) -> None:
        before, now = set(self.fleet["silent"]), set(said["silent"])
        self.fleet = said
        for pump in sorted(now - before):
            self.tell(f"[bold]{pump}[/] has lost its connection and stores its readings")
        for pump in sorted(before - now):
            self.tell(f"[bold]{pump}[/] is back and sends what it stored")

    def take(self, panes: list[dict[str, Any]], late: list[dict[str, Any]], dead: list[dict[str, Any]]) -> None:
        """The rows of one batch: a pane of weight -1 retracts the one that the next replaces."""
        refined: Counter[str] = Counter()
        for pane in panes:
            self.litres += pane["weight"] * pane["litres"]
            self.readings += pane["weight"] * pane["readings"]
            place = pane["device"], pane["window"]["start"]
            if pane["weight"] < 0:
                continue
            timing = pane["pane"]["timing"]
            self.panes[timing] += 1
            old = self.cells.get(place)
            self.cells[place] = Cell(pane["litres"], timing, old.litres if old else None, time.monotonic())
            if timing == "late" and old:
                refined[pane["device"]] += pane["litres"] - old.litres
        for pump, litres in refined.items():
            self.tell(f"[bold]{pump}[/]: [magenta]late panes[/] add {litres:,} litres to windows sent before")
        for pump, count in Counter(row["device"] for row in late).items():
            self.tell(f"[bold]{pump}[/]: {count:,} readings came [red]too late[/] and are kept in readings.late")
        if dead:
            others = f" and {len(dead) - 1:,} more" if len(dead) > 1 else ""
            self.tell(f"[red]dead letter[/]{others}: {_short(dead[0]['reason'])}")
        self.late += len(late)
        self.dead += len(dead)
        newest = sorted({start for _, start in self.cells})[-2 * COLUMNS :]
        self.cells = {place: cell for place, cell in self.cells.items() if place[1] in newest}

    def progressed(self, batch: int, read: int, lag: int, watermark: datetime | None) -> None:
        now = time.monotonic()
        if batch != self.batch:
            self._reads.append((now, read))
        while len(self._reads) > 2 and now - self._reads[0][0] > RATE_S:
            self._reads.popleft()
        self.batch, self.read, self.lag, self.watermark = batch, read, lag, watermark

    def rows_per_second(self) -> float:
        if len(self._reads) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._reads[0], self._reads[-1]
        return (last - first) / max(0.1, last_at - first_at)

    def behind_s(self) -> float | None:
        return None if self.watermark is None else (datetime.now().astimezone() - self.watermark).total_seconds()

    def line(self) -> str:
        """Everything in one line, for output without a terminal."""
        behind = self.behind_s()
        parts = [f"{time.monotonic() - self.began_at:5.1f} s", f"sent {self.fleet['sent']:,}", f"read {self.read:,}"]
        parts += [f"lag {self.lag:,}", f"{self.rows_per_second():,.0f} rows/s"]
        parts += [f"{WORDS[timing]} panes {self.panes[timing]:,}" for timing in WORDS]
        parts += ["watermark not yet known" if behind is None else f"watermark {behind:.1f} s behind"]
        return " · ".join([*parts, f"late {self.late:,}", f"dead {self.dead:,}"])

    # ------------------------------------------------------------ the screen

    def __rich__(self) -> RenderableType:
        return Group(self._heading(), *self._link(), self._counters() if self.cells else self._start(), *self._below())

    def _heading(self) -> RenderableType:
        row = Table.grid(expand=True)
        row.add_column()
        row.add_column(justify="right")
        seconds = int(time.monotonic() - self.began_at)
        clock = f"{seconds // 60:02}:{seconds % 60:02}"
        end = "[yellow]ending: the last panes are on their way[/]" if self.ending else "[dim]Ctrl-C ends it[/]"
        row.add_row(f"[bold cyan]Millstream[/]  {len(self.pumps)} pumps → log → Spark → SQLite", f"{clock}  {end}")
        return Panel(row, box=box.ROUNDED, border_style="cyan", padding=(0, 1))

    def _link(self) -> Iterator[RenderableType]:
        if self.console:
            yield Text("Open the console in a browser, once, within ten minutes:", style="dim")
            yield Text(self.console, style="cyan", no_wrap=True, overflow="ignore")

    def _start(self) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=2)
        rows.add_column()
        rows.add_column(justify="right", style="dim")
        now = time.monotonic()
        for phase in self.phases:
            mark = Spinner("dots", style="cyan") if phase.ended_at is None else Text("✓", style="green")
            style = "bold" if phase.ended_at is None else "dim"
            rows.add_row(mark, Text(phase.text, style=style), f"{(phase.ended_at or now) - phase.began_at:.1f} s")
        waiting = f"{self.fleet['sent']:,} readings wait in the log" if self.fleet["sent"] else ""
        return Panel(Group(rows, Text(), Text(waiting, style="cyan")), title="starting", padding=(1, 2))

    def _counters(self) -> RenderableType:
        table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
        behind = self.behind_s()
        counters = {
            "sent": f"{self.fleet['sent']:,}",
            "read": f"{self.read:,}",
            "lag": f"{self.lag:,}",
            "rows/s": f"{self.rows_per_second():,.0f}",
            "watermark": "…" if behind is None else f"{behind:.1f} s behind",
            "early …": f"[yellow]{self.panes['early']:,}[/]",
            "on time ✓": f"[green]{self.panes['on_time']:,}[/]",
            "late ✚": f"[magenta]{self.panes['late']:,}[/]",
            "too late": f"[red]{self.late:,}[/]",
            "dead": f"[red]{self.dead:,}[/]",
        }
        for name in counters:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(*(f"[bold]{value}[/]" for value in counters.values()))
        return table

    def _below(self) -> Iterator[RenderableType]:
        if self.cells:
            yield self._grid()
            yield Text.from_markup(
                "  [dim strike]1,234[/][dim] was sent before the pane beside it, which took its place[/]"
            )
        lines = [f"[dim]{at:%H:%M:%S}[/]  {event}" for at, event in list(self._events)]
        if lines:
            yield Panel(
                Text.from_markup("\n".join(lines), overflow="ellipsis"), title="what happens", border_style="dim"
            )

    def _grid(self) -> RenderableType:
        cells = dict(self.cells)
        starts = sorted({start for _, start in cells})[-COLUMNS:]
        table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        table.add_column("litres in\n[dim]10 seconds[/]", width=12)
        for start in starts:
            table.add_column(Group(f"{start.astimezone():%H:%M:%S}", self._filled(start)), justify="right", ratio=1)
        for pump in self.pumps:
            silent = pump in self.fleet["silent"]
            name = Text(f"{'○' if silent else '●'} {pump}", style="dim" if silent else "bold")
            table.add_row(name, *(_shown(cells.get((pump, start))) for start in starts))
        return table

    def _filled(self, start: datetime) -> Text:
        """The progress of the watermark in a window, and after its end in its allowed lateness."""
        width = 9
        passed = timedelta(0) if self.watermark is None else self.watermark - start
        if passed < WINDOW:
            done, colour, word = max(0, int(width * (passed / WINDOW))), "yellow", "open    "
        elif passed < WINDOW + LATENESS:
            done, colour, word = int(width * ((passed - WINDOW) / LATENESS)), "green", "complete"
        else:
            done, colour, word = width, "bright_black", "closed  "
        return Text.assemble(("━" * done, colour), ("─" * (width - done), "bright_black"), (f" {word}", colour))


def _shown(cell: Cell | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    colour, mark = LOOKS[cell.timing]
    style = colour
    if time.monotonic() - cell.changed_at < FRESH_S:
        style = f"bold {colour} reverse" if cell.timing == "late" else f"bold {colour}"
    before = f"{cell.before:,}" if cell.before not in (None, cell.litres) else ""
    return Text.assemble((before, "dim strike"), "  ", (f"{cell.litres:>6,} {mark}", style))


def _short(reason: str) -> str:
    return (reason if len(reason) <= 60 else f"{reason[:59]}…").replace("[", "\\[")
