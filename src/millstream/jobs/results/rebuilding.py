"""A request in a job's folder to rebuild its results from its sources: the next run starts over.

Only a run has the flow, and with it the passwords of the outputs. So `millstream jobs rebuild` writes the request, and
the next run empties the outputs (`start_over.py`). Starting over removes the request with everything else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from millstream.errors import DamagedState
from millstream.jobs.job_folder import JobFolder
from millstream.log.storage.disk import read_document, write_document

REBUILD = "rebuild.json"


@dataclass(frozen=True)
class Rebuild:
    allows_loss: bool = False
    """Whether results may omit records that the sources no longer have."""


def request_rebuild(folder: JobFolder, wanted: Rebuild) -> None:
    """The caller holds the folder's lock."""
    write_document(folder.path / REBUILD, asdict(wanted))


def requested_rebuild(folder: JobFolder) -> Rebuild | None:
    path = folder.path / REBUILD
    if not path.exists():
        return None
    try:
        return Rebuild(allows_loss=bool(read_document(path)["allows_loss"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedState(
            f"the request to rebuild the results cannot be read: {error}",
            where=str(path),
            next_step=f"request it again: {folder.command('rebuild')}",
        ) from error
