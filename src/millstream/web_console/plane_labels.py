"""The keys and values of a batch of a time plane as texts that a page shows, with masked columns hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.supervision.mask import Mask
from millstream.supervision.masking import Masking

KEY, VALUES = ", ", " · "
QUESTION_PARTS = ("window", "index")


def labelled(batch: dict[str, Any], heading: Mapping[str, Any], masking: Masking) -> dict[str, Any]:
    """A batch as `PlaneStep` describes it, with keys and values joined. A pane also has the question that asks for it,
    with signs in place of masked keys: the supervisor knows what they stand for."""
    mask = masking.now()
    keys, values = heading.get("keys", []), heading.get("values", [])

    def question(asked: dict[str, Any]) -> dict[str, Any]:
        return {
            name: masking.remembered(mask, each) if name not in QUESTION_PARTS and mask.hides(name) else each
            for name, each in asked.items()
        }

    return {
        **batch,
        "rows": [[at, _joined(key, keys, mask, KEY)] for at, key in batch["rows"]],
        "late": [[at, _joined(key, keys, mask, KEY), origin] for at, key, origin in batch["late"]],
        "panes": [
            [*where, _joined(key, keys, mask, KEY), _joined(value, values, mask, VALUES), question(asked)]
            for *where, key, value, asked in batch["panes"]
        ],
    }


def _joined(texts: Sequence[str], names: Sequence[str], mask: Mask, between: str) -> str:
    shown = [mask.sign(text) if mask.hides(name) else text for name, text in zip(names, texts, strict=True)]
    return between.join(shown)
