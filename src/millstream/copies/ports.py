"""What a place must provide to have a copy of a table.

A copy has one row per key, as JSON. With the rows it has marks: up to where each writer has applied changes. A writer
continues at its mark, so a change that is applied again after a crash is one that the copy may have, and the newest
change of a key always wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from millstream.capture.changes import key_text
from millstream.errors import InvalidInput

Mark = dict[str, Any]
Changes = Mapping[str, bytes | None]
"""The new row of each key; None if it was deleted."""


class Store(Protocol):
    @property
    def where(self) -> str:
        """For messages; without a password."""

    def mark(self, writer: str) -> Mark | None:
        """Up to where a writer has applied changes; None if it has not begun."""

    def writers(self) -> list[str]:
        """All that have a mark."""

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        """Applies changes and notes the mark; with `clear`, to an empty copy.

        Changes nothing and returns False if the writer's mark is not `before`: the copy was replaced.
        """

    def holds(self, key: str, row: bytes) -> bool:
        """Whether this is the row of a key."""

    def empty(self) -> None:
        """Removes all rows and marks."""

    def replacement(self) -> Store:
        """An empty copy beside this one, which readers do not see."""

    def switch(self) -> None:
        """Called for a replacement: readers see it from now on, all of it at once, and the old copy is gone."""

    def close(self) -> None: ...


def row_key(values: list[Any]) -> str:
    """The key of a row, as in topics of a capture: one value as text, several as a JSON array of texts."""
    texts = [key_text(value) for value in values]
    return texts[0] or "" if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def cannot_switch(where: str) -> InvalidInput:
    return InvalidInput(
        "this copy cannot be replaced at once",
        where=where,
        next_step="follow the topic into another address, and have its readers use that",
    )
