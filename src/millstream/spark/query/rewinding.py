"""Sources of a flow of an app that go back, because the flow did not take part in a batch that was planned with it.

Spark repeats an unfinished batch with the offsets that it has stored. If a flow has failed or was removed meanwhile,
the batch is repeated without it, and afterwards its sources are where that batch started: the flow reads the same rows
when it runs again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millstream.connectors.source import Offsets
from millstream.errors import DamagedState
from millstream.log.storage.disk import read_document, write_document

REWINDS = "rewinds.json"


@dataclass(frozen=True)
class Rewind:
    flow: str
    batch: int
    """The batch that was repeated without the flow."""
    clock: int
    """The clock of that batch, which identifies it in offsets."""
    sources: dict[str, Offsets]
    """By source of the flow, where that batch started."""


def read_rewinds(folder: Path) -> list[Rewind]:
    """The rewinds in a job's folder."""
    path = folder / REWINDS
    if not path.exists():
        return []
    try:
        return [Rewind(**entry) for entry in read_document(path)["rewinds"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedState(
            f"the positions of flows that have failed cannot be read: {error}",
            where=str(path),
            next_step=f"restore the file from a copy, or rebuild the results: millstream jobs rebuild {folder.name}",
        ) from error


def write_rewinds(folder: Path, rewinds: Iterable[Rewind]) -> None:
    write_document(folder / REWINDS, {"rewinds": [asdict(each) for each in rewinds]})


def rewound(offset: dict[str, Any], rewinds: Iterable[Rewind]) -> dict[str, Offsets]:
    """The offsets of sources from which a batch starts that follows the one with this end."""
    sources: dict[str, Offsets] = dict(offset["sources"])
    for each in rewinds:
        if offset["clock"] <= each.clock:
            sources |= {name: start for name, start in each.sources.items() if name in sources}
    return sources
