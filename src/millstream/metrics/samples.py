"""What a job measures, at one moment. Counters start at zero with each run; instants are seconds since 1970."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class StepPlan:
    """A step as it is in the plan; it does not change while a job runs."""

    name: str
    kind: str
    """source, step (keeps no state), stateful, late, dead or output."""
    label: str
    inputs: tuple[str, ...] = ()
    has_watermark: bool = False
    """Of a source: whether its rows have an event time that moves a watermark."""
    idle_s: float | None = None
    """Of a source: how long a partition may be silent before it no longer holds the watermark back."""
    drops_late: bool = False
    """Whether its late rows are counted and then dropped."""
    topic: str | None = None
    """Of a source or an output: the topic on the job's own broker, if it is one."""


@dataclass(frozen=True)
class PartitionSample:
    """A partition of a source. Only the newest values are kept."""

    source: str
    partition: str
    offset: int | None = None
    """The next to read."""
    end: int | None = None
    """The first that does not exist yet."""
    watermark: float | None = None
    moved_at: float | None = None
    """When its watermark last moved."""
    active_at: float | None = None
    """When it last had rows; None: it had none since the job exists."""
    seen_at: float | None = None
    """When the job first saw the partition."""
    lag_s: float | None = None


@dataclass(frozen=True)
class StepSample:
    rows_in: int | None = None
    """None: unknown, since Spark runs several steps as one."""
    rows_out: int | None = None
    rows_late: int = 0
    rows_dead: int = 0
    rows_per_s: float | None = None
    """Rows in since the last sample, by second."""
    watermark: float | None = None
    """What its inputs have reached; of a source, what its partitions have reached."""
    delay_s: float | None = None
    """How far the watermark that it passes on is behind the clock."""
    delay_own_s: float | None = None
    """The part of the delay that this step adds: rows of open windows hold the watermark back."""
    delay_inherited_s: float | None = None
    """The part of the delay that comes from the steps and sources before it."""
    lag_records: int | None = None
    """Records of a source that were not read yet."""
    lag_s: float | None = None
    """How long the oldest of them has waited."""
    state_rows: int | None = None
    state_bytes: int | None = None
    rows_dropped: int = 0
    """Records of a queue that were dropped because it was full, or because they were too old."""


@dataclass(frozen=True)
class Sample:
    """A job at one moment."""

    at: float
    batch: int = -1
    rows: int = 0
    """Read."""
    rows_late: int = 0
    rows_dead: int = 0
    rows_per_s: float | None = None
    lag_records: int | None = None
    lag_s: float | None = None
    watermark: float | None = None
    delay_s: float | None = None
    batch_s: float = 0.0
    """From the end of the batch before to the end of the last one."""
    wait_s: float = 0.0
    """The part of it in which there were no rows to read."""
    plan_s: float = 0.0
    process_s: float = 0.0
    write_s: float = 0.0
    other_s: float = 0.0
    """The rest: Spark's own planning, and its checkpoint."""
    busy: float | None = None
    """The share of the time since the last sample in which the job did not wait for rows, from 0 to 1."""
    waits_for: str | None = None
    """The sink that is down, and why."""
    steps: dict[str, StepSample] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotSample:
    """What a Postgres server keeps for a capture, whether that runs or not."""

    database: str
    """Its name in the settings of the supervisor."""
    slot: str
    slot_retained_bytes: int
    slot_lag_bytes: int
    slot_is_active: int
    slot_is_lost: int


@dataclass(frozen=True)
class Metrics:
    """The metrics of a job as its folder has them."""

    run_started: float
    plan: tuple[StepPlan, ...] = ()
    partitions: tuple[PartitionSample, ...] = ()
    samples: tuple[Sample, ...] = ()
    """The oldest first."""

    @property
    def newest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def step(self, name: str) -> StepPlan | None:
        return next((each for each in self.plan if each.name == name), None)


METRICS: dict[str, str] = {
    "rows_in": "Rows that a step received.",
    "rows_out": "Rows that came out of a step, or were written by an output.",
    "rows_late": "Rows that were too late for a step.",
    "rows_dead": "Rows and records that a step could not handle.",
    "rows_per_s": "Rows that a step received per second, since the last sample.",
    "watermark": "The watermark of a step's inputs, in seconds since 1970.",
    "delay_s": "How far the watermark that a step passes on is behind the clock.",
    "delay_own_s": "The part of the delay that the step adds itself.",
    "delay_inherited_s": "The part of the delay that comes from the steps and sources before it.",
    "lag_records": "Records of a source that were not read yet.",
    "lag_s": "How long the oldest record that was not read yet has waited.",
    "state_rows": "Rows of state that a step holds.",
    "state_bytes": "The size of these rows in files.",
    "rows_dropped": "Records of a queue that were dropped: it was full, or they were too old.",
}
"""Of a step, by name."""
JOB_METRICS: dict[str, str] = {
    "rows": "Rows read.",
    "rows_late": "Late rows, of all steps.",
    "rows_dead": "Dead letters, of all steps.",
    "rows_per_s": "Rows read per second, since the last sample.",
    "lag_records": "Records of all sources that were not read yet.",
    "lag_s": "How long the oldest of them has waited.",
    "watermark": "The lowest watermark of all steps that keep state, in seconds since 1970.",
    "delay_s": "How far that watermark is behind the clock.",
    "batch": "The number of the last batch.",
    "batch_s": "The time from the end of the batch before to the end of the last batch.",
    "wait_s": "The part of batch_s in which there were no rows to read.",
    "plan_s": "The part in which the batch was planned.",
    "process_s": "The part in which its rows were read and processed by Spark's tasks.",
    "write_s": "The part in which its results were written.",
    "other_s": "The rest of batch_s: Spark's own planning, and its checkpoint.",
    "busy": "The share of the time in which the job did not wait for rows, from 0 to 1.",
}
"""Of a job, by name."""
SLOT_METRICS: dict[str, str] = {
    "slot_retained_bytes": "How much of its change log a Postgres server keeps for a capture.",
    "slot_lag_bytes": "How much of the change log the capture has not stored yet.",
    "slot_is_active": "1 if a capture is reading the slot, else 0.",
    "slot_is_lost": "1 if the server no longer has, or may soon remove, changes that the capture needs, else 0.",
}
"""Of a replication slot of a watched database, by name."""


def is_idle(partition: PartitionSample, source: StepPlan, now: float) -> bool:
    """Whether a partition has been silent for so long that it does not hold the watermark back."""
    if source.idle_s is None:
        return False
    return now - (partition.active_at or partition.seen_at or now) >= source.idle_s


def as_document(metrics: Metrics, job: str, step: str | None = None) -> dict[str, Any]:
    """The metrics as JSON; of one step alone if it is given."""
    samples = []
    for sample in metrics.samples:
        made = asdict(sample)
        if step is not None:
            made["steps"] = {name: each for name, each in made["steps"].items() if name == step}
        samples.append(made)
    return {
        "job": job,
        "run_started": metrics.run_started,
        "plan": [{**asdict(each), "inputs": list(each.inputs)} for each in metrics.plan],
        "partitions": [asdict(each) for each in metrics.partitions],
        "samples": samples,
    }
