"""Draws a plan as SVG: every step is below its inputs, and arrows pass beside boxes, not through them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from millstream.plan.nodes import Node
from millstream.terminal import escaped

WIDTH = 290
LINE = 17
PADDING = 12
GAP_X = 44
GAP_Y = 46
MARGIN = 28
THREAD = 24  # the width of an arrow that passes a layer
CHARACTERS = 40
LINES_MAX = 7
ROUNDS = 8  # of moving boxes towards their neighbours

STYLE = """
  .paper { fill: #ffffff }
  text { font: 12.5px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #334155 }
  .flow { font-size: 15px; font-weight: 600; fill: #0f172a } .name { font-weight: 600; fill: #0f172a }
  .columns { font-size: 11px; fill: #64748b }
  rect.box { stroke-width: 1.4 }
  path { fill: none; stroke: #64748b; stroke-width: 1.5 } path.side { stroke-dasharray: 5 4 }
  .source rect { fill: #dbeafe; stroke: #2563eb } .step rect { fill: #f8fafc; stroke: #64748b }
  .state rect { fill: #ede9fe; stroke: #7c3aed } .side rect { fill: #fef3c7; stroke: #d97706 }
  .sink rect { fill: #dcfce7; stroke: #16a34a } .tip { fill: #64748b }
"""


@dataclass(eq=False)
class Box:
    """A step, or the gap where an arrow passes a layer."""

    node: Node | None
    width: float
    above: list[Box] = field(default_factory=list)
    below: list[Box] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + 2 * PADDING if self.node else 0.0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def drawn(flow: str, steps: Sequence[Node], kinds: Mapping[Node, str]) -> str:
    layers, boxes, arrows = _layered(steps)
    _placed(layers)
    width = max(box.x + box.width for layer in layers for box in layer) + MARGIN
    height = max(box.y + box.height for box in boxes.values()) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" role="img" aria-label="{_content(f"The plan of {flow}")}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" style="stroke: none; fill: #64748b" d="M 0 1 L 10 5 L 0 9 z"/></marker></defs>',
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="flow" x="{MARGIN}" y="{MARGIN + 4}">{_content(flow)}</text>',
    ]
    parts += [_arrow(way, side=kinds[end] == "side") for way, end in arrows]
    parts += [_box(box, kinds[node]) for node, box in boxes.items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _layered(steps: Sequence[Node]) -> tuple[list[list[Box]], dict[Node, Box], list[tuple[list[Box], Node]]]:
    """Boxes by layer, by step, and the arrows as the boxes they pass."""
    depth: dict[Node, int] = {}
    for node in steps:
        depth[node] = max((depth[given] + 1 for given in node.inputs), default=0)
    for node in reversed(steps):  # a source is right above its reader
        users = [depth[other] for other in steps if node in other.inputs]
        if users and not node.inputs:
            depth[node] = min(users) - 1
    layers: list[list[Box]] = [[] for _ in range(max(depth.values()) + 1)]
    boxes: dict[Node, Box] = {}
    arrows = []
    for node in steps:
        boxes[node] = Box(node, WIDTH, lines=_lines(node))
        for given in node.inputs:
            way = [boxes[given]]
            for layer in range(depth[given] + 1, depth[node]):
                way.append(Box(None, THREAD))
                layers[layer].append(way[-1])
            way.append(boxes[node])
            for upper, lower in pairwise(way):
                upper.below.append(lower)
                lower.above.append(upper)
            arrows.append((way, node))
        layers[depth[node]].append(boxes[node])
    return layers, boxes, arrows


def _lines(node: Node) -> list[tuple[str, str]]:
    lines = textwrap.wrap(escaped(node.label), CHARACTERS, break_on_hyphens=False) or [""]
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], lines[LINES_MAX - 1][: CHARACTERS - 1] + "…"]
    columns = textwrap.shorten(", ".join(node.schema.names), CHARACTERS + 4, placeholder=" …")
    return [("name", node.name), *(("label", line) for line in lines), ("columns", columns)]


def _placed(layers: list[list[Box]]) -> None:
    """Sorts each layer by its neighbours, then aligns boxes vertically as far as there is room."""
    y = MARGIN + 28.0
    for layer in layers:
        for box in layer:
            box.y = y
        y += max(box.height for box in layer) + GAP_Y
        _spread(layer)
    for turn in range(ROUNDS):
        down = turn % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = {box: _mean(box.above if down else box.below, box.middle) for box in layer}
            layer.sort(key=lambda box: wanted[box])
            for box in layer:
                box.x = wanted[box] - box.width / 2
            _spread(layer)
    left = min(box.x for layer in layers for box in layer)
    for layer in layers:
        for box in layer:
            box.x += MARGIN - left


def _mean(boxes: Sequence[Box], otherwise: float) -> float:
    return sum(box.middle for box in boxes) / len(boxes) if boxes else otherwise


def _spread(layer: list[Box]) -> None:
    """Pushes overlapping boxes apart, equally to both sides."""
    wanted = [box.middle for box in layer]
    for before, box in pairwise(layer):
        box.x = max(box.x, before.x + before.width + GAP_X)
    moved = sum(box.middle - place for box, place in zip(layer, wanted, strict=True)) / len(layer)
    for box in layer:
        box.x -= moved


def _content(text: str) -> str:
    """Control characters are not allowed in XML, not even as references."""
    return escape(escaped(text))


def _arrow(way: Sequence[Box], *, side: bool) -> str:
    first = way[0]
    x, y = first.middle, first.y + first.height
    path = f"M {x:.1f} {y:.1f}"
    for box in way[1:]:
        bend = (box.y - y) / 2
        path += f" C {x:.1f} {y + bend:.1f} {box.middle:.1f} {box.y - bend:.1f} {box.middle:.1f} {box.y:.1f}"
        x, y = box.middle, box.y
    return f'<path{" class=" + chr(34) + "side" + chr(34) if side else ""} d="{path}" marker-end="url(#tip)"/>'


def _box(box: Box, kind: str) -> str:
    assert box.node is not None
    whole = f"{_content(f'{box.node.name}: {box.node.label}')}\n{_content(str(box.node.schema))}"
    lines = [f'<g class="{kind}"><title>{whole}</title>']
    lines.append(
        f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width}" height="{box.height}" rx="7"/>'
    )
    for number, (style, line) in enumerate(box.lines):
        y = box.y + PADDING + number * LINE + 12.5
        lines.append(f'<text class="{style}" x="{box.x + PADDING:.1f}" y="{y:.1f}">{_content(line)}</text>')
    return "\n".join([*lines, "</g>"])
