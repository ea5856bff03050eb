"""What a run does when records were deleted before they were read: as its sources say, or as the run says for all.

Sources are read in processes whose words nobody hears. What they passed over they note in the job's folder, and the
process that runs the job tells it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from millstream.plan.explain import in_order
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.places import Kafka
from millstream.sources import KafkaSource, Source, TopicSource

NOTES = "lost.jsonl"
logger = logging.getLogger(__name__)


def note_losses(folder: str, source: Source) -> None:
    """Called where a source is read."""
    if isinstance(source, TopicSource | KafkaSource) and source.losses:
        lines = "".join(json.dumps(loss) + "\n" for loss in source.losses)
        source.losses.clear()
        with (Path(folder) / NOTES).open("a") as file:
            file.write(lines)


class LossNotes:
    """Tells what was noted since it was made, once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOTES
        self._told = self._path.stat().st_size if self._path.exists() else 0

    def tell(self) -> None:
        if not self._path.exists() or self._path.stat().st_size <= self._told:
            return
        with self._path.open("rb") as file:
            file.seek(self._told)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):  # else it is still being written
                self._told += len(line)
                logger.warning("%s", json.loads(line))


def with_on_lost(outputs: Sequence[Write], choice: str) -> tuple[Write, ...]:
    """The same outputs, over topics that are read with this choice."""
    made: dict[Node, Node] = {}
    for node in in_order(outputs):
        kept = replace(node, inputs=tuple(made[given] for given in node.inputs))
        if isinstance(kept, Read):
            source = replace(kept.source, on_lost=choice) if isinstance(kept.source, Kafka) else kept.source
            kept = replace(kept, source=source, on_lost=choice)
        made[node] = kept
    return tuple(found for output in outputs if isinstance(found := made[output], Write))
