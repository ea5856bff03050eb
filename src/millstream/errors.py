"""Every failure a user can meet is one class of this tree, and says what happened, where, and what to do next."""

from __future__ import annotations

from typing import ClassVar

from millstream.terminal import escaped, escaped_lines


class MillstreamError(Exception):
    """The root. `where` names the place (topic, partition, offset, file, step); `next_step` what the user can do.

    As text it is for people: what it quotes is escaped, so that no record can act on a terminal or add a line of its
    own. The attributes hold the exact text.
    """

    exit_code = 1
    has_lines: ClassVar[bool] = False
    """Whether line breaks in `what` are ours."""
    is_escaped: ClassVar[bool] = True

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what, where, next_step)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [escaped_lines(self.what) if self.has_lines else escaped(self.what)]
        if self.where:
            lines.append(f"  where: {escaped(self.where)}")
        if self.next_step:
            lines.append(f"  next:  {escaped(self.next_step)}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.next_step))


def _rebuild(kind: type[MillstreamError], what: str, where: str | None, next_step: str | None) -> MillstreamError:
    return kind(what, where=where, next_step=next_step)


# ---------------------------------------------------------------- what the user wrote cannot mean anything


class InvalidInput(MillstreamError):
    """An argument, setting or name that is refused when it is given."""

    exit_code = 2


class InvalidSchema(InvalidInput):
    """A schema string that cannot be read, or a schema that does not fit its use."""


class InvalidName(InvalidInput):
    """A topic, group, queue or producer name with characters or a form that is not allowed."""


class InvalidSetting(InvalidInput):
    """A setting with a value that makes no sense, or one that does not exist."""


class UnusableSchema(InvalidSetting):
    """A writer's schema, kept by a schema registry, that its values cannot be read with."""


class InvalidDuration(InvalidInput):
    """A duration that cannot be read or is negative."""


class InvalidRecord(InvalidInput):
    """A record that does not fit the topic it was sent to."""


# ---------------------------------------------------------------- something named is missing, or there already


class NotFound(MillstreamError):
    """Something that was named does not exist."""

    exit_code = 3


class UnknownTopic(NotFound):
    """No topic of that name, or it was deleted meanwhile."""


class TopicMoved(NotFound):
    """The topic is with another broker now, and takes no more records here."""


class UnknownSchema(NotFound):
    """A schema registry has no schema with that id."""


class UnknownPartition(NotFound):
    """The topic has no such partition."""


class UnknownGroup(NotFound):
    """No consumer group of that name."""


class UnknownQueue(NotFound):
    """No queue of that name."""


class AlreadyExists(MillstreamError):
    """Something of that name is there already."""

    exit_code = 4


# ---------------------------------------------------------------- the log on disk


class StorageError(MillstreamError):
    """The folder of the log cannot be used as it is."""

    exit_code = 5


class NotALog(StorageError):
    """The path is a file, or a folder with other things in it."""


class NoAccess(StorageError):
    """The folder or a file in it cannot be read or written by this user."""


class UntrustedFolder(StorageError):
    """A folder for this user's private files that another user made, or can change."""


class UnsupportedFormat(StorageError):
    """The log was written by another version of Millstream, in a format this one does not know."""


class DiskFull(StorageError):
    """There is no room for the records; none of them was stored. A producer keeps them and goes on when there is."""


class DamagedLog(StorageError):
    """Bytes below the acknowledged mark do not match their checksum or are missing."""


class KafkaUnavailable(StorageError):
    """No broker of Kafka answers, or not as it should; it may pass."""


class DamagedState(StorageError):
    """What a job has kept is missing or cannot be read: its checkpoint, the state of a step, a note in its folder."""


# ---------------------------------------------------------------- transmitting


class OffsetLost(MillstreamError):
    """The offset asked for was deleted by retention before it was read."""


class BufferFull(MillstreamError):
    """The producer's buffer is full and its policy is to refuse."""


class RecordDropped(MillstreamError):
    """The record was dropped by the policy of a full buffer."""


class ProducerFenced(MillstreamError):
    """A newer producer of the same name has taken over; this one may not write any more."""


class TransactionAborted(MillstreamError):
    """The transaction cannot be committed and nothing of it will be seen."""


class PartitionsRevoked(MillstreamError):
    """The consumer no longer owns a partition whose offset it wants to commit."""


class DeliveryExpired(MillstreamError):
    """A message of a queue was answered too late: it is, or will be, with another consumer."""


class ClosedError(MillstreamError):
    """The producer, consumer, queue or log was closed before."""


# ---------------------------------------------------------------- what a flow says cannot be done


class InvalidPlan(InvalidInput):
    """A step of a flow that makes no sense where it was written."""


class InvalidExpression(InvalidPlan):
    """A Spark SQL expression that cannot be read, names a missing column, or cannot run."""


class InvalidWindow(InvalidPlan):
    """A window that cannot exist."""


class InvalidTrigger(InvalidPlan):
    """A trigger that makes no sense or can never fire."""


class InvalidAggregate(InvalidPlan):
    """An aggregate that cannot be computed."""


# ---------------------------------------------------------------- running a flow


class ExpressionFailed(MillstreamError):
    """An expression has no answer for a row: text that is no number, a division by zero, an overflow."""


# ---------------------------------------------------------------- Spark


class SparkFailed(MillstreamError):
    """Spark did not start, or ended a query, for a reason outside the flow."""

    exit_code = 7


class UnfitWorkers(SparkFailed):
    """Some workers lack what the job needs: a line for each."""

    has_lines = True


class JavaMissing(SparkFailed):
    """No Java that Spark can run on."""


class RecordFailed(MillstreamError):
    """A record that a step of a job cannot handle, and that nobody takes as a dead letter."""


# ---------------------------------------------------------------- writing what a job made


class SinkUnavailable(MillstreamError):
    """A sink cannot be written now: it is down, locked or full. The same batch can be written again later."""

    exit_code = StorageError.exit_code


class SinkFailed(MillstreamError):
    """A sink refused a batch, and trying again would not help."""


class JobRunning(MillstreamError):
    """A job that runs already."""

    exit_code = 4


class JobChanged(MillstreamError):
    """A flow that does not fit what its job has kept."""

    exit_code = 2
    has_lines = True


class OutputMismatch(MillstreamError):
    """A job and one of its outputs do not belong together: a part of one was removed, or another run wrote there."""

    exit_code = 2


class StartOverRefused(MillstreamError):
    """A job cannot start over: an output holds more than the job wrote, or a source has lost what it once held."""

    exit_code = 2


class StepFailed(MillstreamError):
    """A step of a job failed, and not because of a single record."""
