"""Which columns are masked now: those that the supervisor was started with, and those of every job's plan.

Plans are read from the folders of jobs, whether or not the supervisor still knows the job: its topics are still there.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.errors import NotFound
from millstream.jobs.versions.plan_document import FILE, read_plan
from millstream.plan.shown.masks import checked_masks
from millstream.supervision.mask import SIGN, Mask

KNOWN_MAX = 100_000
Stamp = tuple[int, int]


@dataclass(frozen=True)
class _Planned:
    """What a plan says about masked columns."""

    stamp: Stamp
    masked: frozenset[str]
    columns: dict[str, tuple[str, ...]]
    """By topic that the job reads, the columns it reads, also in flows of an app that do not run now."""


class Masking:
    def __init__(self, columns: Sequence[str], jobs: Path, folders: Callable[[], Iterable[Path]]) -> None:
        """`jobs` has the folders of jobs, and `folders` returns those of jobs that are elsewhere."""
        self._columns = frozenset(checked_masks(columns))
        self._jobs, self._folders = jobs, folders
        self._secret = secrets.token_bytes(32)
        self._plans: dict[Path, _Planned] = {}
        self._made: Mask | None = None
        self._signed: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def now(self) -> Mask:
        folders = {*self._folders(), *(self._jobs.iterdir() if self._jobs.is_dir() else ())}
        with self._lock:
            plans = {folder: each for folder in folders if (each := self._planned(folder)) is not None}
            if self._made is None or plans != self._plans:
                self._plans, self._made = plans, self._mask(plans.values())
            return self._made

    def _planned(self, folder: Path) -> _Planned | None:
        """What a plan says. If it cannot be read, what it said when it was last read."""
        known = self._plans.get(folder)
        try:
            found = (folder / FILE).stat()
        except OSError:
            return known
        stamp = (found.st_mtime_ns, found.st_ino)
        if known is not None and known.stamp == stamp:
            return known
        plan = read_plan(folder)
        return known if plan is None else _Planned(stamp, frozenset(plan.get("masked", [])), _columns_read(plan))

    def _mask(self, plans: Iterable[_Planned]) -> Mask:
        plans = list(plans)
        columns = self._columns.union(*(each.masked for each in plans))
        names = Mask(columns, self._secret)
        read = [(topic, each) for plan in plans for topic, each in plan.columns.items()]
        return Mask(
            columns, self._secret, frozenset(topic for topic, each in read if any(names.hides(name) for name in each))
        )

    # ------------------------------------------------------------ signs that come back

    def remembered(self, mask: Mask, value: Any) -> Any:
        """The sign of a value, which a page may use in a request: its value is remembered for a while."""
        sign = mask.sign(value)
        if sign is not None:
            with self._lock:
                self._signed[sign] = value
                self._signed.move_to_end(sign)
                while len(self._signed) > KNOWN_MAX:
                    self._signed.popitem(last=False)
        return sign

    def meant(self, value: Any) -> Any:
        """The value that a sign stands for; any other value is itself."""
        if not isinstance(value, str) or not value.startswith(SIGN):
            return value
        with self._lock:
            if value not in self._signed:
                raise NotFound(f"the masked value {value} is not known any more", next_step="open the page again")
            return self._signed[value]


def _columns_read(plan: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """By topic; in plans of earlier versions, these are the columns of steps."""
    found: dict[str, tuple[str, ...]] = {topic: tuple(columns) for topic, columns in plan.get("read", {}).items()}
    for step in plan.get("logical", []):
        if topic := step.get("topic"):
            found[topic] = (*found.get(topic, ()), *step["columns"])
    return found
