"""Draws matches: the rows of a key in order of event time, and below them one line for each match as it was emitted.

A label on a line is the variable that the row above it plays. A line that goes on behind its last label is a match, or
a partial match, that waited for its limit of time.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.plan.patterns.node import Matches
from millstream.testing import svg
from millstream.testing.axes import SECOND, Frame, Scale, instant_text, padded, time_ticks
from millstream.testing.match_recording import Given, Kind, MatchRecording, Spotted
from millstream.testing.palette import (
    FAINT,
    GRID,
    INK,
    LEFT_PX,
    LETTER_PX,
    PANELS_MAX,
    PAPER,
    PILL_PX,
    RADIUS_PX,
    RETRACTED,
    RIGHT_PX,
    TIMINGS,
    WHITE,
    WIDTH_ONE_PX,
    WINDOW,
)
from millstream.testing.scene import Key

LANE_PX, ROWS_PX, TICKS_PX, TITLE_PX = 26, 40, 26, 22
COLOURS = {Kind.MATCH: TIMINGS["on_time"], Kind.RETRACTED: RETRACTED, Kind.TIMED_OUT: TIMINGS["late"]}
DASHES = {Kind.TIMED_OUT: "4 4"}


def drawn_matches(recording: MatchRecording) -> str:
    """The whole picture: the pattern, a panel for each key, a legend."""
    every = sorted({row.key for row in recording.given}, key=str)
    keys = every[:PANELS_MAX] or [()]
    node = recording.node
    which = "every match" if node.matches is Matches.EVERY else "preferred matches"
    parts = [
        svg.words(16, 24, "pattern", fill=FAINT, font_weight="bold"),
        svg.words(76, 24, _cut(f"{node.search.rules}, {which}, skip {node.skip}"), fill=INK),
    ]
    top = 40.0
    for key in keys:
        spotted = [each for each in recording.spotted if each.key == key]
        height = (TITLE_PX if key else 0) + ROWS_PX + LANE_PX * max(len(spotted), 1) + TICKS_PX
        frame = Frame(LEFT_PX, top + (TITLE_PX if key else 0), WIDTH_ONE_PX - RIGHT_PX, top + height - TICKS_PX)
        parts += _panel(recording, key, spotted, frame)
        top += height
    if len(every) > PANELS_MAX:
        more = f"and {len(every) - PANELS_MAX} more keys"
        parts.append(svg.words(WIDTH_ONE_PX - 16, 24, more, fill=FAINT, text_anchor="end"))
    parts += _legend(recording, top + 14)
    return svg.picture(WIDTH_ONE_PX, top + 32, parts, background=PAPER)


def _cut(text: str) -> str:
    letters = int((WIDTH_ONE_PX - 96) / LETTER_PX)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _panel(recording: MatchRecording, key: Key, spotted: list[Spotted], frame: Frame) -> Iterator[str]:
    rows = [row for row in recording.given if row.key == key]
    times = [row.time for row in rows if row.time is not None] + [each.end for each in spotted]
    x = Scale(*padded(times, 0.06, SECOND), frame.left, frame.right)
    if key:
        name = ", ".join(f"{name} {value}" for name, value in zip(recording.node.keys, key, strict=True))
        yield svg.words(frame.left, frame.top - 8, name, size=12, fill=INK, font_weight="bold")
    yield svg.box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top, fill=WHITE, stroke=GRID)
    for time, text in time_ticks(x.low, x.high, int((frame.right - frame.left) / 90)):
        yield svg.line(x(time), frame.top, x(time), frame.bottom, stroke=GRID)
        yield svg.words(x(time), frame.bottom + 16, text, size=10, fill=FAINT, text_anchor="middle")
    used = {part.time for each in spotted if each.kind is not Kind.TIMED_OUT for part in each.parts}
    for row in rows:
        yield _row(row, x, frame.top + ROWS_PX / 2, is_used=row.time in used)
    for number, each in enumerate(spotted):
        yield _match(each, x, frame.top + ROWS_PX + LANE_PX * (number + 0.5), frame)
    if not spotted:
        yield svg.words(frame.left + 10, frame.top + ROWS_PX + LANE_PX / 2 + 4, "no match", fill=FAINT)


def _row(row: Given, x: Scale, y: float, *, is_used: bool) -> str:
    if row.time is None:
        return ""
    fill = INK if is_used else WINDOW
    place, radius = x(row.time), max(RADIUS_PX, 4 + LETTER_PX * len(row.label) / 2)
    shape = svg.box(place - radius, y - RADIUS_PX, 2 * radius, 2 * RADIUS_PX, rx=RADIUS_PX, fill=fill)
    parts = [shape, svg.words(place, y + 4, row.label, fill=WHITE, text_anchor="middle")]
    if row.is_late:
        parts.append(svg.line(place - radius, y, place + radius, y, stroke=RETRACTED, stroke_width=1.8))
    what = "late row" if row.is_late else "row"
    return svg.group(parts, title=f"{what} {row.label} at {instant_text(row.time)}", class_="row")


def _match(each: Spotted, x: Scale, y: float, frame: Frame) -> str:
    colour, first, last = COLOURS[each.kind], x(each.parts[0].time), x(each.parts[-1].time)
    end = x(each.end)
    dashes = DASHES.get(each.kind)
    parts = [svg.words(frame.left - 7, y + 3.5, f"step {each.step}", size=10, fill=FAINT, text_anchor="end")]
    parts.append(svg.line(first, y, last, y, stroke=colour, stroke_width=2, stroke_dasharray=dashes))
    if end > last:
        parts.append(svg.line(last, y, end, y, stroke=colour, stroke_width=2, stroke_dasharray="2 3"))
        parts.append(svg.line(end, y - 6, end, y + 6, stroke=colour, stroke_width=2))
    for part in each.parts:
        width = 8 + LETTER_PX * len(part.variable)
        place = x(part.time)
        fill, ink = (WHITE, colour) if each.kind is Kind.TIMED_OUT else (colour, WHITE)
        parts.append(svg.box(place - width / 2, y - PILL_PX / 2, width, PILL_PX, rx=4, fill=fill, stroke=colour))
        parts.append(svg.words(place, y + 4, part.variable, fill=ink, text_anchor="middle"))
    if each.kind is Kind.RETRACTED:
        parts.append(svg.line(first - 14, y, last + 14, y, stroke=INK, stroke_width=1.2))
    rows = ", ".join(f"{part.variable} at {instant_text(part.time)}" for part in each.parts)
    return svg.group(parts, title=f"step {each.step}: {each.kind.value}: {rows}", class_="match")


def _legend(recording: MatchRecording, y: float) -> Iterator[str]:
    """Only what the figure shows."""
    x = 16.0
    kinds = {each.kind for each in recording.spotted}
    free = [svg.box(2, -6, 16, 12, rx=6, fill=WINDOW)], "other row"
    used = [svg.box(2, -6, 16, 12, rx=6, fill=INK)], "row of a match"
    samples = [used, free] if kinds - {Kind.TIMED_OUT} else [free]
    for kind in Kind:
        if kind in kinds:
            line = svg.line(1, 0, 19, 0, stroke=COLOURS[kind], stroke_width=2, stroke_dasharray=DASHES.get(kind))
            samples.append(([line], kind.value))
    for sample, text in samples:
        yield svg.group(
            [*sample, svg.words(24, 4, text, fill=FAINT)], transform=f"translate({x:.1f} {y:.1f})", class_="legend"
        )
        x += 40 + len(text) * 6.2
