"""A job's results are rebuilt from its sources: what it kept is set aside, and its next run writes its outputs afresh.

    rebuild    notes in rebuild.json which outputs are to be emptied; sets aside what the job kept
    next run   checks that the sources still begin with their first records; empties these outputs; removes the note

Only a run has the flow, and with it the passwords of its outputs. Until it has emptied all of them and removed the
note, no row is written: whatever dies in between, the next run does it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream import terminal
from millstream.connectors.opening_sources import KafkaSource, Source, TopicSource
from millstream.connectors.sink import Sink, described
from millstream.errors import DamagedState, InvalidInput
from millstream.jobs.folder import LOCK, SINKS, JobFolder, is_job
from millstream.jobs.repairing import set_aside
from millstream.log.disk import read_document, sync_folder, write_document
from millstream.plan.nodes import Write

REBUILD = "rebuild.json"
REAL_TIME = "checkpoint-real-time"
STAYS = (LOCK, REBUILD, "sources", "tables.json", "stop")
"""`sources` numbers the files and holds the lines that were read; a rebuilt job reads the same again."""

logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Output:
    """Where an output has written, as it is noted in the job's folder."""

    name: str
    place: str | None
    """None if it is not known."""
    runs: tuple[str, ...]
    can_clear: bool = True


@dataclass(frozen=True)
class Rebuild:
    outputs: tuple[Output, ...]
    """Those that the next run empties."""
    allows_loss: bool = False
    """Whether results may lack what came from records that the sources no longer have."""


def outputs_of(folder: JobFolder) -> list[Output]:
    """The outputs of a job, those of a rebuild that has not run yet among them."""
    found = {output.name: output for output in _pending_outputs(folder)}
    for ledger in sorted((folder.path / SINKS).glob("*/*.json")):
        output = _output(ledger)
        before = found.get(output.name)
        runs = (*(before.runs if before else ()), *output.runs)
        found[output.name] = Output(output.name, output.place, tuple(dict.fromkeys(runs)), output.can_clear)
    return list(found.values())


def _output(ledger: Path) -> Output:
    name = ledger.parent.name
    try:
        said = read_document(ledger)
        return Output(name, said["place"], (str(said["run"]),), bool(said["can_clear"]))
    except (ValueError, LookupError, TypeError):
        return Output(name, None, ())


def rebuild(folder: JobFolder, *, keep: Iterable[str] = (), allow_loss: bool = False) -> tuple[Rebuild, Path]:
    """Has the next run of a job start over and empty its outputs first, but for those that are kept.

    Gives what the next run does, and where what the job kept lies now. Hold the folder meanwhile.
    """
    outputs, keep = outputs_of(folder), tuple(keep)
    check_rebuildable(folder, outputs, keep)
    wanted = Rebuild(tuple(output for output in outputs if output.name not in keep), allow_loss)
    write_document(folder.path / REBUILD, _document(wanted))
    return wanted, _set_all_aside(folder)


def check_rebuildable(folder: JobFolder, outputs: Sequence[Output], keep: Sequence[str]) -> None:
    if (folder.path / REAL_TIME).exists():
        raise InvalidInput(
            f"the job '{folder.job}' runs in real time, and its outputs cannot be told from what others wrote there",
            where=str(folder.path),
            next_step=f"empty its topics, then start over: millstream jobs forget {folder.job}",
        )
    names = [output.name for output in outputs]
    for name in keep:
        if name not in names:
            raise InvalidInput(
                f"the job '{folder.job}' has no output '{name}'", next_step=f"outputs: {', '.join(names) or 'none'}"
            )
    others = _places_of_others(folder)
    for output in outputs:
        why = _why_not(output, others)
        if why is not None and output.name not in keep:
            raise InvalidInput(
                f"the output '{output.name}' cannot be emptied: {why}",
                where=str(folder.path / SINKS / output.name),
                next_step=f"remove what this job wrote there yourself, then add --keep {output.name}: its rows are "
                "written again",
            )


def _why_not(output: Output, others: Mapping[str, str]) -> str | None:
    if output.place is None:
        return "where it wrote cannot be read"
    if not output.can_clear:
        return f"what {output.place} has written is known to the function alone"
    if output.place in others:
        return f"the job '{others[output.place]}' also writes to {output.place}"
    return None


def _places_of_others(folder: JobFolder) -> dict[str, str]:
    """By place, another job that writes there; files of jobs are told apart by their names."""
    found = {}
    for path in sorted(folder.path.parent.iterdir()):
        if path != folder.path and is_job(path):
            for output in map(_output, (path / SINKS).glob("*/*.json")):
                if output.place is not None and not output.place.startswith("files in "):
                    found[output.place] = path.name
    return found


# ---------------------------------------------------------------- in the next run


def pending_rebuild(folder: JobFolder) -> Rebuild | None:
    """What a run has to do first, if a rebuild was asked for. Hold the folder meanwhile."""
    pending = _read(folder)
    if pending is not None:
        _set_all_aside(folder)  # what a run left that came no further
    return pending


def check_complete(folder: JobFolder, name: str, source: Source) -> None:
    """Refuses to rebuild results from a topic that has lost its first records."""
    if not isinstance(source, TopicSource | KafkaSource):
        return
    lost = {part: start for part, start in source.earliest().items() if start > 0}
    if lost:
        listed = ", ".join(f"{start:,} of partition {part}" for part, start in lost.items())
        raise InvalidInput(
            f"the source '{name}' no longer has its first records ({listed}): results that came from them would be "
            "gone. No output was emptied",
            where=str(folder.path),
            next_step=f"{folder.command('rebuild')} --allow-loss rebuilds what can be; or write the results beside, "
            "with flow.replay(into=…)",
        )


def finish_rebuild(folder: JobFolder, pending: Rebuild, sinks: Mapping[Write, Sink]) -> None:
    """Empties the outputs. From then on the job is one that starts for the first time."""
    wanted = {output.name: output for output in pending.outputs}
    for node, sink in sinks.items():
        output = wanted.pop(node.name, None)
        if output is not None and output.place == described(node.sink):
            sink.clear(output.runs)
        elif output is not None:
            wanted[node.name] = output
    for output in wanted.values():
        logger.warning("%s: the flow does not write to %s any more; it was not emptied", folder.job, output.place)
    (folder.path / REBUILD).unlink()
    sync_folder(folder.path)


# ---------------------------------------------------------------- the note


def _set_all_aside(folder: JobFolder) -> Path:
    there = sorted(path for path in folder.path.iterdir() if path.name not in STAYS)
    return set_aside(folder, [path for path in there if not path.name.startswith(("aside-", "."))])


def _document(wanted: Rebuild) -> dict[str, Any]:
    outputs = {output.name: {"place": output.place, "runs": list(output.runs)} for output in wanted.outputs}
    return {"outputs": outputs, "allows_loss": wanted.allows_loss}


def _pending_outputs(folder: JobFolder) -> tuple[Output, ...]:
    pending = _read(folder)
    return () if pending is None else pending.outputs


def _read(folder: JobFolder) -> Rebuild | None:
    path = folder.path / REBUILD
    if not path.exists():
        return None
    try:
        said = read_document(path)
        outputs = tuple(
            Output(name, each["place"], tuple(map(str, each["runs"]))) for name, each in said["outputs"].items()
        )
        return Rebuild(outputs, bool(said["allows_loss"]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedState(
            f"which outputs are to be emptied cannot be read: {error}",
            where=str(path),
            next_step=f"empty them yourself, then start over: millstream jobs forget {folder.job}",
        ) from error
