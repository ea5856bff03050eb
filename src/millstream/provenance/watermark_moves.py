"""Which records moved the watermark over a time, or what else did."""

from __future__ import annotations

from typing import Any

from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.elementwise import OFFSET
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import moment
from millstream.provenance.replaying import Moment, PartitionTrack, Replay


def moves_over(time: int, at: Moment, replay: Replay) -> dict[str, Any]:
    """What brought the watermark of a batch to a time: the first record of each partition that had held it back.

    `idle` has partitions that are still behind, but were idle, and so did not hold it back any more.
    """
    crossing = [track for track in at.tracks if track.before < time <= track.after]
    behind = [track for track in at.tracks if track.timed is not None and track.after < time]
    return {
        "batch": at.batch.number,
        "records": [record for track in crossing if (record := _record(track, time, replay)) is not None],
        "idle": [] if at.is_end else [_named(track) for track in behind],
        "run_ended": at.is_end,
    }


def reached_at(time: int, step: Node, replay: Replay) -> Moment | None:
    """The batch in which the watermark of a step reached a time."""
    for at in replay.moments():
        clock = at.sent[step].clock
        if clock.watermark_before < time <= clock.watermark:
            return at.without_rows()
    return None


def _record(track: PartitionTrack, time: int, replay: Replay) -> dict[str, Any] | None:
    number = track.first_reaching(time)
    if number is None:
        return None
    row = track.rows.row(track.rows[OFFSET].index_of(number) or 0, named=True)
    return {**replay.origin(number).document(), "event_time": moment(row[TIME])}


def _named(track: PartitionTrack) -> dict[str, Any]:
    return {"source": track.source.name, "partition": track.partition}
