"""Renders a plan: the same steps in the same order as text, Mermaid or SVG, each under its stable name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.errors import InvalidInput
from millstream.plan.bad_rows import stopped_by_bad_records
from millstream.plan.nodes import Dead, Late, Node, Read, Write
from millstream.plan.patterns.node import TimedOut
from millstream.plan.shown.drawing import drawn
from millstream.plan.walking import in_order
from millstream.terminal import escaped
from millstream.user_lines import users_line, what_exists

Format = Literal["text", "mermaid", "svg"]
FORMATS = ("text", "mermaid", "svg")
SHAPES = {"source": ("([", "])"), "sink": ("[(", ")]"), "state": ("[[", "]]"), "side": ("[", "]"), "step": ("[", "]")}
COLOURS = {
    "source": "fill:#dbeafe,stroke:#2563eb,color:#0f172a",
    "step": "fill:#f8fafc,stroke:#64748b,color:#0f172a",
    "state": "fill:#ede9fe,stroke:#7c3aed,color:#0f172a",
    "side": "fill:#fef3c7,stroke:#d97706,color:#0f172a",
    "sink": "fill:#dcfce7,stroke:#16a34a,color:#0f172a",
}


def explained(flow: str, ends: Sequence[Node], format: Format) -> str:
    """The steps that lead to some nodes."""
    if format not in FORMATS:
        raise InvalidInput(
            f"explain has no format {format!r}",
            where=users_line(),
            next_step=what_exists(format, FORMATS, kind="formats"),
        )
    return shown(flow, in_order(ends), format)


def shown(flow: str, steps: Sequence[Node], format: Format) -> str:
    if format == "mermaid":
        return as_mermaid(steps)
    if format == "svg":
        return drawn(flow, steps, {node: kind_of(node) for node in steps})
    return as_text(flow, steps)


@dataclass(frozen=True, eq=False)
class Stage(Node):
    """Steps of a plan that an engine runs together, drawn as one box."""

    does: str
    kind: str
    steps: tuple[str, ...] = ()
    """The steps that measure something, by name, in the order in which they run."""

    @property
    def label(self) -> str:
        return self.does


def kind_of(node: Node) -> str:
    if isinstance(node, Stage):
        return node.kind
    if isinstance(node, Read):
        return "source"
    if isinstance(node, Write):
        return "sink"
    if isinstance(node, Late | Dead | TimedOut):
        return "side"
    return "state" if node.keeps_state else "step"


def as_text(flow: str, steps: Sequence[Node]) -> str:
    """One paragraph per step: its name, what it does, where its rows come from, its columns, the user's line."""
    lines = [f"flow {flow}"]
    stopping = stopped_by_bad_records(steps) if steps and isinstance(steps[-1], Write) else frozenset()
    for node in steps:
        lines += ["", node.name, f"    {node.label}"]
        if node.inputs:
            lines.append(f"    from     {', '.join(given.name for given in node.inputs)}")
        lines.append(f"    columns  {node.schema}")
        if node.user_line:
            lines.append(f"    at       {short_line(node.user_line)}")
        if node in stopping:
            lines.append("    stops    at a record that cannot be decoded: its .dead is not written anywhere")
    return "\n".join(map(escaped, lines)) + "\n"


def short_line(user_line: str) -> str:
    """Relative to the working directory if it is inside it, so that it is the same on every machine."""
    file, _, line = user_line.rpartition(":")
    try:
        return f"{Path(file).relative_to(Path.cwd())}:{line}"
    except ValueError:
        return user_line


def as_mermaid(steps: Sequence[Node]) -> str:
    lines = ["flowchart TD"]
    ids = {node: f"s{number}" for number, node in enumerate(steps, 1)}
    for node in steps:
        opening, closing = SHAPES[kind_of(node)]
        text = f"<b>{_escaped(node.name)}</b><br/>{_escaped(node.label)}"
        lines.append(f'    {ids[node]}{opening}"{text}"{closing}:::{kind_of(node)}')
    for node in steps:
        arrow = "-.->" if kind_of(node) == "side" else "-->"
        lines += [f"    {ids[given]} {arrow} {ids[node]}" for given in node.inputs]
    used = dict.fromkeys(kind_of(node) for node in steps)
    lines += [f"    classDef {kind} {COLOURS[kind]}" for kind in used]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escapes what Mermaid or HTML would interpret as markup."""
    return "".join(f"#{ord(sign)};" if sign in "\"'#&<>`\\{}[]|;" else sign for sign in escaped(text))
