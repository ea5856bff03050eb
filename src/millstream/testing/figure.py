"""Draws a recording: event time to the right, processing time upwards, one panel for each key.

Circles are the elements, the stepped line is the watermark, shaded columns are windows, and a bar across a window is a
pane, at the processing time when it fired and in the colour of its timing.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.testing import marks, svg
from millstream.testing.axes import MINUTE, Axes, Frame, Scale, padded, step_ticks, time_ticks
from millstream.testing.palette import (
    ABOVE_PX,
    BELOW_PX,
    DOT_PX,
    FAINT,
    GRID,
    IDEAL,
    INK,
    LANE_PX,
    LEFT_PX,
    LETTER_PX,
    PANELS_MAX,
    PAPER,
    PLOT_HEIGHT_MAX_PX,
    PLOT_HEIGHT_PX,
    RETRACTED,
    RIGHT_PX,
    ROW_HEIGHT_PX,
    TIMINGS,
    WATERMARK,
    WHITE,
    WIDTH_ONE_PX,
    WIDTH_TWO_PX,
    WINDOW,
)
from millstream.testing.recording import Recording
from millstream.testing.scene import Fate, Key, Scene, scene_of


def drawn(recording: Recording) -> str:
    """A recording as SVG."""
    return figure(scene_of(recording))


def figure(scene: Scene) -> str:
    """The whole picture: caption, panels, legend."""
    keys = scene.keys[:PANELS_MAX] or [()]
    columns = 1 if len(keys) == 1 else 2
    width = WIDTH_ONE_PX if columns == 1 else WIDTH_TWO_PX
    caption = list(_caption(scene, width))
    top = (22 if scene.key_names else 4) + 16 * len(scene.caption)
    plot_height = _plot_height(scene)
    panel_height = ABOVE_PX + plot_height + BELOW_PX
    parts = caption
    for number, key in enumerate(keys):
        frame = Frame(
            left=(number % columns) * width / columns + LEFT_PX,
            top=top + (number // columns) * panel_height + ABOVE_PX,
            right=(number % columns + 1) * width / columns - RIGHT_PX,
            bottom=top + (number // columns) * panel_height + ABOVE_PX + plot_height,
        )
        parts += _panel(scene, key, frame)
    bottom = top + -(-len(keys) // columns) * panel_height
    legend, height = _legend(scene, width, bottom + 8)
    return svg.picture(width, bottom + height + 16, [*parts, *legend], background=PAPER)


def _caption(scene: Scene, width: float) -> Iterator[str]:
    letters = int((width - 80) / LETTER_PX)
    for number, (question, answer) in enumerate(scene.caption):
        y = 24 + 16 * number
        yield svg.words(16, y, question, fill=FAINT, font_weight="bold")
        text = answer if len(answer) <= letters else answer[: letters - 1] + "…"
        yield svg.words(62, y, text, fill=INK)
    more = len(scene.keys) - PANELS_MAX
    if more > 0:
        yield svg.words(width - 16, 24, f"and {more} more keys", fill=FAINT, text_anchor="end")


def _plot_height(scene: Scene) -> float:
    """A step needs room for the bars stacked in it; a clock has a linear scale."""
    if scene.by_clock:
        return PLOT_HEIGHT_PX
    bars = [bar for key in scene.keys for bar in marks.bars_of([pane for pane in scene.panes if pane.key == key])]
    lanes = max((bar.lane for bar in bars), default=0)
    return min(PLOT_HEIGHT_MAX_PX, max(200, scene.steps * (ROW_HEIGHT_PX + LANE_PX * min(lanes, 3))))


# ---------------------------------------------------------------- a panel


def _panel(scene: Scene, key: Key, frame: Frame) -> list[str]:
    axes = _axes(scene, frame)
    elements = [element for element in scene.elements if element.key == key]
    panes = [pane for pane in scene.panes if pane.key == key]
    circles, bars = marks.placed(elements, axes), marks.bars_of(panes)
    partitions = [part for name, moves in scene.partitions.items() for part in marks.watermark(moves, axes, name)]
    return [
        svg.box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top, fill=WHITE, stroke=GRID),
        *_grid(scene, axes),
        *_key(scene, key, frame),
        *marks.windows(scene, panes, elements, axes),
        *marks.ideal(scene, axes),
        *partitions,
        *marks.watermark(scene.watermark, axes),
        *marks.lines(bars, axes, scene),
        *(marks.circle(mark, axes, scene) for mark in circles),
        *marks.pills(bars, axes, [mark.box for mark in circles if mark.radius > DOT_PX], scene),
    ]


def _key(scene: Scene, key: Key, frame: Frame) -> Iterator[str]:
    if key:
        name = ", ".join(f"{name} {value}" for name, value in zip(scene.key_names, key, strict=True))
        yield svg.words(frame.left, frame.top - 9, name, size=12, fill=INK, font_weight="bold")


def _axes(scene: Scene, frame: Frame) -> Axes:
    times = [element.time for element in scene.elements if element.time is not None]
    if not scene.in_processing_time:
        times += [edge for pane in scene.panes for edge in pane.span if edge is not None]
    x_low, x_high = padded(times, 0.04, MINUTE)
    near = [move.to for move in scene.watermark if move.to is not None and _is_near(move.to, x_low, x_high)]
    x_low, x_high = padded([*times, *near], 0.04, MINUTE)
    happened = [element.at for element in scene.elements] + [pane.at for pane in scene.panes]
    if scene.by_clock:
        last = [move.at for move in scene.watermark if move.at >= min(happened)]
        y_low, y_high = padded([*happened, *last], 0.08, MINUTE)
    else:
        y_low, y_high = -0.6, max(scene.steps, 2) - 0.2
    return Axes(frame, Scale(x_low, x_high, frame.left, frame.right), Scale(y_low, y_high, frame.bottom, frame.top))


def _is_near(time: int, low: float, high: float) -> bool:
    """A watermark far from all rows would leave them no room."""
    return low - (high - low) / 4 <= time <= high + (high - low)


def _grid(scene: Scene, axes: Axes) -> Iterator[str]:
    frame, x, y = axes.frame, axes.x, axes.y
    for time, text in time_ticks(x.low, x.high, int((frame.right - frame.left) / 62)):
        yield svg.line(x(time), frame.top, x(time), frame.bottom, stroke=GRID)
        yield svg.words(x(time), frame.bottom + 16, text, size=10, fill=FAINT, text_anchor="middle")
    height = int((frame.bottom - frame.top) / 28)
    ticks = time_ticks(y.low, y.high, height) if scene.by_clock else step_ticks(scene.steps, height)
    for at, text in ticks:
        yield svg.line(frame.left, y(at), frame.right, y(at), stroke=GRID)
        yield svg.words(frame.left - 7, y(at) + 3.5, text, size=10, fill=FAINT, text_anchor="end")
    middle = (frame.top + frame.bottom) / 2
    upwards = "processing time" if scene.by_clock else "step"
    turned = f"rotate(-90 {frame.left - 68:.1f} {middle:.1f})"
    yield svg.words(frame.left - 68, middle + 4, f"{upwards} →", fill=FAINT, text_anchor="middle", transform=turned)
    yield svg.words((frame.left + frame.right) / 2, frame.bottom + 34, "event time →", fill=FAINT, text_anchor="middle")


# ---------------------------------------------------------------- the legend


def _legend(scene: Scene, width: float, top: float) -> tuple[list[str], float]:
    """Only what the figure shows."""
    x, y, parts = 16.0, top + 12, []
    for sample, text in _samples(scene):
        long = 34 + len(text) * 6.2
        if x + long > width - 10:
            x, y = 16.0, y + 20
        parts.append(svg.group([sample, svg.words(22, 4, text, fill=FAINT)], transform=f"translate({x:.1f} {y:.1f})"))
        x += long
    return parts, y - top + 8


def _samples(scene: Scene) -> Iterator[tuple[str, str]]:
    fates = {element.fate for element in scene.elements}
    if Fate.IN_TIME in fates:
        yield svg.circle(10, 0, 6, fill=INK), "element"
    if Fate.BEHIND in fates:
        yield svg.circle(10, 0, 6, fill=WHITE, stroke=TIMINGS["late"], stroke_width=1.8), "behind the watermark"
    if Fate.LOST in fates:
        cross = svg.line(5.5, 4.5, 14.5, -4.5, stroke=RETRACTED, stroke_width=1.8)
        ring = svg.circle(10, 0, 6, fill=WHITE, stroke=RETRACTED, stroke_width=1.8)
        yield ring + cross, "too late"
    if scene.watermark:
        yield svg.line(1, 0, 18, 0, stroke=WATERMARK, stroke_width=2.2), "watermark"
    if scene.partitions:
        yield svg.line(1, 0, 18, 0, stroke=WATERMARK, stroke_dasharray="2 3"), "of a partition"
    if scene.by_clock:
        yield svg.line(1, 0, 18, 0, stroke=IDEAL, stroke_dasharray="5 5"), "ideal"
    if scene.panes:
        yield svg.box(2, -6, 16, 12, fill=WINDOW, fill_opacity=0.16, stroke=WINDOW, stroke_opacity=0.5), "window"
    for timing, colour in TIMINGS.items():
        if any(pane.timing == timing for pane in scene.panes):
            yield svg.box(2, -5, 16, 10, rx=3, fill=colour), f"{timing.replace('_', ' ')} pane".replace("unknown ", "")
    if any(pane.retracted for pane in scene.panes):
        struck = svg.line(4, 0, 16, 0, stroke=RETRACTED)
        yield svg.box(2, -5, 16, 10, rx=3, fill=WHITE, stroke=RETRACTED) + struck, "retraction"
