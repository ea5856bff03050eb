"""The marks of a panel: windows, watermark, elements and panes, each a group with a descriptive title."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from millstream.testing import svg
from millstream.testing.axes import Axes, Frame, instant_text
from millstream.testing.palette import (
    BARE_PX,
    DOT_PX,
    ELEMENTS_WITH_LABEL_MAX,
    IDEAL,
    INK,
    LANE_PX,
    LETTER_PX,
    PANES_SHOWN_MAX,
    PILL_PX,
    RADIUS_PX,
    RETRACTED,
    TIMINGS,
    WATERMARK,
    WHITE,
    WINDOW,
)
from millstream.testing.scene import Element, Fate, Move, Pane, Scene, Span

Box = tuple[float, float, float, float]


# ---------------------------------------------------------------- windows and watermarks


def windows(scene: Scene, panes: Sequence[Pane], elements: Sequence[Element], axes: Axes) -> Iterator[str]:
    """A window is shaded from its first element to its last pane; one in processing time is horizontal."""
    spans = dict.fromkeys(pane.span for pane in panes)
    for span in spans:
        left, right = axes.edges(span)
        last = max(pane.at for pane in panes if pane.span == span)
        first = min((element.at for element in elements if _is_within(element, span, last)), default=None)
        low, high = axes.frame.bottom if first is None else axes.y(first), axes.y(last)
        if scene.in_processing_time:
            left, right = axes.frame.left, axes.frame.right
            low, high = (axes.y(span[0] or 0), axes.y(span[1] or 0)) if scene.by_clock else (low, high)
        height = max(low - high, 2.0)
        shape = svg.box(
            left, high, right - left, height, fill=WINDOW, fill_opacity=0.16, stroke=WINDOW, stroke_opacity=0.5
        )
        yield svg.group([shape], title=f"window {said_span(span)}", class_="window")


def _is_within(element: Element, span: Span, until: int) -> bool:
    if element.time is None or element.at > until or element.fate is Fate.LOST:
        return False
    low, high = (span[0], span[1]) if span[0] is None or span[1] is None else sorted(span)  # type: ignore[type-var]
    return (low is None or low <= element.time) and (high is None or element.time <= high)


def ideal(scene: Scene, axes: Axes) -> Iterator[str]:
    """Where every element would be if it arrived at once: only if both axes show the same times."""
    low, high = max(axes.x.low, axes.y.low), min(axes.x.high, axes.y.high)
    if scene.by_clock and low < high:
        ends = (axes.x(low), axes.y(low), axes.x(high), axes.y(high))
        yield svg.line(*ends, stroke=IDEAL, stroke_dasharray="5 5", class_="ideal")


def watermark(moves: Sequence[Move], axes: Axes, label: str | None = None) -> Iterator[str]:
    """The line of the watermark or, thinner and labelled, of one partition."""
    if not moves:
        return
    frame, points = axes.frame, []
    x, y = frame.left, axes.y(moves[0].at)
    for move in moves:
        points += [(x, axes.y(move.at))]
        x = frame.right if move.to is None else axes.x(move.to)
        y = axes.y(move.at)
        points += [(x, y)]
    ends = moves[-1].to is None
    if not ends:
        points.append((x, frame.top))
    style = {"stroke": WATERMARK, "stroke_linejoin": "round"}
    if label is not None:
        named = svg.words(frame.left + 4, axes.y(moves[0].at) - 4, label, size=10, fill=WATERMARK)
        thin = svg.polyline(points, stroke_width=1, stroke_dasharray="2 3", **style)
        yield svg.group([thin, named], title=f"watermark of partition {label}", class_="partition")
        return
    shapes = [svg.polyline(points, stroke_width=2.2, **style)]
    if ends:
        tip = f"{frame.right:.1f},{y:.1f} {frame.right - 8:.1f},{y - 4.5:.1f} {frame.right - 8:.1f},{y + 4.5:.1f}"
        shapes.append(svg.tag("polygon", points=tip, fill=WATERMARK))
        shapes.append(svg.words(frame.right - 4, y - 8, "∞", size=13, fill=WATERMARK, text_anchor="end"))
    yield svg.group(shapes, title="watermark", class_="watermark")


# ---------------------------------------------------------------- elements


@dataclass(frozen=True)
class Placed:
    element: Element
    x: float
    y: float
    radius: float

    @property
    def box(self) -> Box:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


def placed(elements: Sequence[Element], axes: Axes) -> list[Placed]:
    """Elements with their positions: those on one spot are moved up a little so that each is visible; many are dots."""
    many = len(elements) > ELEMENTS_WITH_LABEL_MAX
    radius = DOT_PX if many else RADIUS_PX if any(element.label for element in elements) else BARE_PX
    found: list[Placed] = []
    for element in elements:
        x = axes.frame.left + radius + 2 if element.time is None else axes.x(element.time)
        y = axes.y(element.at)
        while not many and y - 2.4 * radius > axes.frame.top and any(_touch(x, y, other) for other in found):
            y -= 1.4 * radius
        found.append(Placed(element, x, y, radius))
    return found


def _touch(x: float, y: float, other: Placed) -> bool:
    return abs(x - other.x) < 1.3 * other.radius and abs(y - other.y) < 1.3 * other.radius


def circle(mark: Placed, axes: Axes, scene: Scene) -> str:
    element, x, y, radius = mark.element, mark.x, mark.y, mark.radius
    colour = RETRACTED if element.weight < 0 else INK
    fill, stroke, ink = {
        Fate.IN_TIME: (colour, colour, WHITE),
        Fate.BEHIND: (WHITE, TIMINGS["late"], TIMINGS["late"]),
        Fate.LOST: (WHITE, RETRACTED, INK),
    }[element.fate]
    shapes = [svg.circle(x, y, radius, fill=fill, stroke=stroke, stroke_width=1.8)]
    if element.fate is Fate.LOST:
        far = radius * 0.7
        shapes.append(svg.line(x - far, y + far, x + far, y - far, stroke=RETRACTED, stroke_width=1.4))
    label = f"-{element.label}" if element.weight < 0 else element.label
    if radius == RADIUS_PX and label:
        shapes.append(_inside(x, y, label, ink) if len(label) <= 3 else _beside(x, y, label, axes.frame))
    came = f"came {said_at(element.at, scene)}"
    title = f"{label or 'element'} of {instant_text(element.time)}, {came}, {element.fate.value}"
    return svg.group(shapes, title=title, class_=f"element {element.fate.name.lower()}")


def _inside(x: float, y: float, label: str, ink: str) -> str:
    size = 11 if len(label) < 3 else 9
    return svg.words(x, y + 3.8, label, size=size, fill=ink, text_anchor="middle", font_weight="bold")


def _beside(x: float, y: float, label: str, frame: Frame) -> str:
    fits = x + RADIUS_PX + len(label) * LETTER_PX < frame.right
    side, anchor = (x + RADIUS_PX + 3, "start") if fits else (x - RADIUS_PX - 3, "end")
    halo = svg.words(side, y + 3.8, label, size=10, stroke=WHITE, stroke_width=4, text_anchor=anchor)
    return halo + svg.words(side, y + 3.8, label, size=10, fill=INK, text_anchor=anchor)


# ---------------------------------------------------------------- panes


@dataclass(frozen=True)
class Bar:
    """The panes of one window at one time; bars that would overlap are in lanes."""

    panes: tuple[Pane, ...]
    lane: int

    @property
    def last(self) -> Pane:
        return self.panes[-1]


def bars_of(panes: Sequence[Pane]) -> list[Bar]:
    found = []
    for _, together in groupby(sorted(panes, key=lambda pane: pane.at), key=lambda pane: pane.at):
        ends: list[float] = []
        by_window: dict[Span, list[Pane]] = {}
        for pane in together:
            by_window.setdefault(pane.span, []).append(pane)
        for span in sorted(by_window, key=_bounds):
            low, high = _bounds(span)
            lane = next((lane for lane, end in enumerate(ends) if end <= low), len(ends))
            ends[lane : lane + 1] = [high]
            found.append(Bar(tuple(by_window[span]), lane))
    return found


def _bounds(span: Span) -> tuple[float, float]:
    start = float("-inf") if span[0] is None else span[0]
    end = float("inf") if span[1] is None else span[1]
    return min(start, end), max(start, end)


def _place(bar: Bar, axes: Axes, scene: Scene) -> tuple[float, float, float]:
    whole = axes.frame.left, axes.frame.right
    left, right = whole if scene.in_processing_time else axes.edges(bar.last.span)
    return left + 1, right - 1, max(axes.y(bar.last.at) - bar.lane * LANE_PX, axes.frame.top + 2)


def lines(bars: Sequence[Bar], axes: Axes, scene: Scene) -> Iterator[str]:
    for bar in bars:
        left, right, y = _place(bar, axes, scene)
        for pane in bar.panes:
            timing = pane.timing.replace("_", " ")
            title = f"{timing} pane of {said_span(pane.span)}: {pane.label}, {said_at(pane.at, scene)}"
            shape = svg.line(left, y, right, y, stroke=TIMINGS[pane.timing], stroke_width=3)
            yield svg.group([shape], title=title, class_=f"pane {pane.timing}")


def pills(bars: Sequence[Bar], axes: Axes, taken: list[Box], scene: Scene) -> Iterator[str]:
    """The values of the panes, on their bars, next to what was drawn before; retracted values are struck out."""
    for bar in bars:
        left, right, y = _place(bar, axes, scene)
        texts = _texts(bar)
        width = sum(_pill_width(text) for text, _, _ in texts)
        x, y = _free_place(left, right, y, width, axes.frame, taken)
        taken.append((x, y - PILL_PX / 2, x + width, y + PILL_PX / 2))
        for text, colour, struck in texts:
            yield _pill(x, y, text, colour, struck=struck)
            x += _pill_width(text)


def _texts(bar: Bar) -> list[tuple[str, str, bool]]:
    """Text, colour, and whether it is struck out; of many panes only the first and the last."""
    many = len(bar.panes) > PANES_SHOWN_MAX
    shown = (bar.panes[0], bar.last) if many else bar.panes
    found = []
    for number, pane in enumerate(shown):
        found += [("…", TIMINGS[pane.timing], False)] if many and number else []
        found += [] if many and number else [(label, RETRACTED, True) for label in pane.retracted]
        found.append((pane.label, TIMINGS[pane.timing], False))
    return found


def _pill_width(text: str) -> float:
    return len(text) * LETTER_PX + 10


def _pill(x: float, y: float, text: str, colour: str, *, struck: bool) -> str:
    width = _pill_width(text) - 2
    ground, ink = (WHITE, colour) if struck else (colour, WHITE)
    middle = x + width / 2
    shapes = [svg.box(x, y - PILL_PX / 2, width, PILL_PX, rx=4, fill=ground, stroke=colour)]
    shapes.append(svg.words(middle, y + 3.9, text, fill=ink, text_anchor="middle", font_weight="bold"))
    if struck:
        shapes.append(svg.line(x + 3, y, x + width - 3, y, stroke=colour, stroke_width=1.4))
    return svg.group(shapes, class_="retraction" if struck else "value")


def _free_place(
    left: float, right: float, y: float, width: float, frame: Frame, taken: Sequence[Box]
) -> tuple[float, float]:
    """On the bar if there is room: in its middle, at an end; else above or below it; else next to its window."""
    middle = (left + right - width) / 2
    levels = (0.0, -19.0, 19.0, -36.0)
    within = [
        (x, y + dy) for dy in levels for x in (middle, left + 2, right - width - 2) if left <= x + 2 <= right - width
    ]
    beside = [(x, y + dy) for dy in levels for x in (middle, right - width / 2, left - width / 2)]
    places = [
        (min(max(x, frame.left + 1), frame.right - width - 1), min(max(level, frame.top + 9), frame.bottom - 9))
        for x, level in (*within, *beside)
    ]
    free = (
        (x, level)
        for x, level in places
        if not any(_overlap((x, level - PILL_PX / 2, x + width, level + PILL_PX / 2), other) for other in taken)
    )
    return next(free, places[0])


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# ---------------------------------------------------------------- words


def said_span(span: Span) -> str:
    return "everything" if span == (None, None) else f"{instant_text(span[0])} to {instant_text(span[1])}"


def said_at(at: int, scene: Scene) -> str:
    return f"at {instant_text(at)}" if scene.by_clock else f"in step {at}"
