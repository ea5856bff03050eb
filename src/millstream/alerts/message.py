"""What an alert says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FIRING, RESOLVED, ROWS, TEST, SENDER = "firing", "resolved", "rows", "test", "sender"
TITLE_CHARACTERS_MAX = 200


@dataclass(frozen=True)
class Message:
    kind: str
    """firing, resolved, rows, test; or sender: about sending alerts itself."""
    title: str
    text: str
    at: float
    job: str | None = None
    rule: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of an alert about rows, as JSON has them."""

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.document(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Message:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Notification:
    """The messages that are sent together."""

    messages: tuple[Message, ...]
    dropped: int = 0
    """Older messages that could not be kept until they were sent."""

    @property
    def title(self) -> str:
        first = self.messages[0].title
        more = "" if len(self.messages) == 1 else f" (and {len(self.messages) - 1} more)"
        return " ".join(first.split())[:TITLE_CHARACTERS_MAX] + more

    @property
    def text(self) -> str:
        parts = [each.text if len(self.messages) == 1 else f"{each.title}\n{each.text}" for each in self.messages]
        if self.dropped:
            parts.append(f"{self.dropped:,} older alerts were dropped: they could not be sent.")
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        shown = [each.document() for each in self.messages]
        return {"title": self.title, "text": self.text, "dropped": self.dropped, "alerts": shown}


def together(messages: Sequence[Message], dropped: int = 0) -> Notification:
    return Notification(tuple(messages), dropped)
