"""Dashboards of a flow file: panels over topics and windows that the console shows live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from millstream.errors import InvalidInput
from millstream.user_lines import AtUsersLine, what_exists

Kind = Literal["line", "bar", "heat", "number", "table", "search", "plane"]
NEEDS: dict[str, tuple[str, ...]] = {
    "line": ("topic", "x", "y"),
    "bar": ("topic", "x", "y"),
    "heat": ("topic", "x", "y", "by"),
    "number": ("topic", "y"),
    "table": ("topic",),
    "search": ("topic",),
    "plane": (),
}
ROWS_MAX = 200
_built: dict[str, Dashboard] = {}


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard: which columns of a topic's newest records it shows, and how; or a time plane."""

    kind: str
    title: str
    topic: str | None
    x: str | None = None
    y: str | None = None
    by: str | None = None
    columns: tuple[str, ...] = ()
    rows: int = ROWS_MAX
    step: str | None = None


@dataclass(frozen=True)
class Dashboard:
    name: str
    panels: tuple[Panel, ...]

    def document(self) -> dict[str, Any]:
        return asdict(self)


def panel(
    kind: Kind,
    title: str,
    topic: str | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
    columns: Sequence[str] = (),
    rows: int = ROWS_MAX,
    step: str | None = None,
) -> Panel:
    """A panel of a dashboard over the newest records of a topic, or changes of a table in a database, at most 200.

    A "line" has the column `y` over the column `x`, one line for each value of `by`. A "bar" has a bar for each value
    of `x`, as long as its newest `y`. A "heat" map has a cell for each `x` and `by`, darker the larger its newest `y`.
    A "number" is the newest `y`. A "table" has the newest records, or `columns` of them; a "search" finds records by a
    text. Fields of a struct are named with a dot: `window.start`.

    A "plane" needs no topic: it is the time plane of the flow's windowed step, or of `step` if there are several.
    """
    with AtUsersLine():
        if kind not in NEEDS:
            raise InvalidInput(f"there is no panel {kind!r}", next_step=what_exists(kind, list(NEEDS), kind="panels"))
        given = {"topic": topic, "x": x, "y": y, "by": by}
        missing = [name for name in NEEDS[kind] if not given[name]]
        if missing:
            raise InvalidInput(f"a {kind} panel needs {' and '.join(missing)}", next_step=f"name it: {missing[0]}='…'")
        if not 1 <= rows <= ROWS_MAX:
            raise InvalidInput(f"a panel shows 1 to {ROWS_MAX} records, not {rows}", next_step=f"rows={ROWS_MAX}")
        return Panel(kind, title, topic, x, y, by, tuple(columns), rows, step)


def dashboard(name: str, *panels: Panel) -> Dashboard:
    """A dashboard that the console shows, live, once a job of this file has started."""
    with AtUsersLine():
        if not name or not panels or not all(isinstance(each, Panel) for each in panels):
            raise InvalidInput(
                "a dashboard has a name and panels", next_step='ms.dashboard("pumps", ms.panel("line", …), …)'
            )
        made = _built[name] = Dashboard(name, panels)
        return made


def built_dashboards() -> list[Dashboard]:
    """Those that were built in this process."""
    return list(_built.values())
