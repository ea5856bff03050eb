"""A note in a job's folder that its results are to be rebuilt from its sources: the next run starts over.

Only a run has the flow, and with it the passwords of the outputs. So `millstream jobs rebuild` writes the note, and the
run that finds it empties the outputs (`start_over.py`); starting over removes the note with all else that the job kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from millstream.errors import DamagedState
from millstream.jobs.folder import JobFolder
from millstream.log.disk import read_document, write_document

REBUILD = "rebuild.json"


@dataclass(frozen=True)
class Rebuild:
    allows_loss: bool = False
    """Whether results may lack what came from records that the sources no longer have."""


def request_rebuild(folder: JobFolder, wanted: Rebuild) -> None:
    """Hold the folder meanwhile."""
    write_document(folder.path / REBUILD, asdict(wanted))


def requested_rebuild(folder: JobFolder) -> Rebuild | None:
    path = folder.path / REBUILD
    if not path.exists():
        return None
    try:
        return Rebuild(allows_loss=bool(read_document(path)["allows_loss"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedState(
            f"how the results are to be rebuilt cannot be read: {error}",
            where=str(path),
            next_step=f"ask for it again: {folder.command('rebuild')}",
        ) from error
