"""Every failure that a user can see is one class of this tree: what happened, where, and what to do next."""

from __future__ import annotations

from typing import ClassVar, Self

from millstream.terminal import escaped, escaped_lines


class MillstreamError(Exception):
    """The root. `where` is the location (topic, partition, offset, file, step); `next_step` what the user can do.

    Its text is for display: quoted contents are escaped, so that no record can control a terminal or add a line. The
    attributes have the exact text.
    """

    exit_code = 1
    has_lines: ClassVar[bool] = False
    """Whether line breaks in `what` are ours."""
    is_escaped: ClassVar[bool] = True
    step: str | None = None
    """The step of a flow that failed, if it is known."""

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what, where, next_step)
        self.what = what
        self.where = where
        self.next_step = next_step

    def of_step(self, step: str | None) -> Self:
        """The same error, of a step."""
        self.step = step
        return self

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


# ---------------------------------------------------------------- invalid input


class InvalidInput(MillstreamError):
    """An invalid argument, setting or name, rejected when it is given."""

    exit_code = 2


class InvalidSchema(InvalidInput):
    """A schema string that cannot be parsed, or a schema that does not fit its use."""


class InvalidName(InvalidInput):
    """A topic, group, queue or producer name with invalid characters or an invalid form."""


class InvalidSetting(InvalidInput):
    """A setting with an invalid value, or one that does not exist."""


class UnusableSchema(InvalidSetting):
    """A writer's schema from a schema registry that cannot be used to read its values."""


class IncompatibleSchema(InvalidSchema):
    """A schema registry rejects a schema: readers or writers of the subject could not use it."""


class InvalidDuration(InvalidInput):
    """A duration that cannot be parsed or is negative."""


class InvalidRecord(InvalidInput):
    """A record that does not fit the topic it was sent to."""


# ---------------------------------------------------------------- missing or already existing


class NotFound(MillstreamError):
    """Something that was named does not exist."""

    exit_code = 3


class UnknownTopic(NotFound):
    """No topic of that name, or it was deleted meanwhile."""


class TopicMoved(NotFound):
    """The topic was moved to another broker, and accepts no more records here."""


class UnknownSchema(NotFound):
    """A schema registry has no schema with that id."""


class UnknownPartition(NotFound):
    """The topic has no such partition."""


class UnknownGroup(NotFound):
    """No consumer group of that name."""


class UnknownQueue(NotFound):
    """No queue of that name."""


class AlreadyExists(MillstreamError):
    """Something of that name already exists."""

    exit_code = 4


# ---------------------------------------------------------------- the log on disk


class StorageError(MillstreamError):
    """The folder of the log cannot be used as it is."""

    exit_code = 5


class NotALog(StorageError):
    """The path is a file, or a folder that is not empty and not a log."""


class NoAccess(StorageError):
    """The folder or a file in it cannot be read or written by this user."""


class UntrustedFolder(StorageError):
    """A folder for this user's private files that another user created, or can change."""


class UnsupportedFormat(StorageError):
    """The log was written by another version of Millstream, in a format that this one does not support."""


class DiskFull(StorageError):
    """There is no space for the records; none of them was stored. A producer keeps them and retries."""


class DamagedLog(StorageError):
    """Bytes below the acknowledged mark do not match their checksum or are missing."""


class SourceUnavailable(StorageError):
    """A source cannot be read at the moment; the job waits for it."""


class KafkaUnavailable(SourceUnavailable):
    """No Kafka broker answers, or a request fails; it may be temporary."""


class ArchiveUnavailable(SourceUnavailable):
    """The archive of a topic cannot be reached: its older records can neither be read nor added to."""


class DamagedState(StorageError):
    """Data of a job is missing or cannot be read: its checkpoint, the state of a step, a file in its folder."""


# ---------------------------------------------------------------- producing and consuming


class OffsetLost(MillstreamError):
    """The requested offset was deleted by retention before it was read."""


class BufferFull(MillstreamError):
    """The producer's buffer is full and its policy is to raise an error."""


class RecordDropped(MillstreamError):
    """The record was dropped by the policy of a full buffer."""


class ProducerFenced(MillstreamError):
    """A newer producer of the same name has taken over; this one may no longer write."""


class TransactionAborted(MillstreamError):
    """The transaction cannot be committed, and none of it becomes visible."""


class PartitionsRevoked(MillstreamError):
    """The consumer no longer owns a partition whose offset it wants to commit."""


class DeliveryExpired(MillstreamError):
    """A message of a queue was settled too late: another consumer has it, or will."""


class ClosedError(MillstreamError):
    """The producer, consumer, queue or log was closed before."""


# ---------------------------------------------------------------- event stores


class EventRefused(MillstreamError):
    """An event store does not record events: nothing of the append was stored."""


class WrongVersion(EventRefused):
    """A stream has another version than the append expects: another writer was first, or the caller is mistaken."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_step: str | None = None,
        stream: str = "",
        expected_version: int = 0,
        current_version: int = 0,
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.stream = stream
        self.expected_version = expected_version
        self.current_version = current_version

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_wrong_version, (self.what, self.where, self.next_step, self.__dict__))


def _rebuild_wrong_version(
    what: str, where: str | None, next_step: str | None, attributes: dict[str, object]
) -> WrongVersion:
    error = WrongVersion(what, where=where, next_step=next_step)
    error.__dict__.update(attributes)
    return error


class StreamClosed(EventRefused):
    """The stream was closed: no event can be appended to it any more."""


class EventIdReused(EventRefused):
    """An event has the id of a recorded event that differs from it: recorded events are never changed."""


class StoreBusy(MillstreamError):
    """Other processes keep appending to an event store on Kafka, which accepts one writer at a time."""


class UnknownEvent(MillstreamError):
    """An aggregate has no handler for an event of its stream."""


class UpcastFailed(MillstreamError):
    """An upcaster raised an error, or did not return the data of an event."""


# ---------------------------------------------------------------- invalid flows


class InvalidPlan(InvalidInput):
    """A step of a flow that is not valid where it was written."""


class UnknownStep(InvalidPlan, AttributeError):
    """A step that streams do not have; also an AttributeError, as Python expects."""


class InvalidExpression(InvalidPlan):
    """A Spark SQL expression that cannot be parsed, names a missing column, or cannot run."""


class NeedsSpark(InvalidExpression):
    """An expression that only Spark can evaluate, in a run without Spark."""


class InvalidWindow(InvalidPlan):
    """A window that cannot exist."""


class InvalidTrigger(InvalidPlan):
    """A trigger that is invalid or can never fire."""


class InvalidPattern(InvalidPlan):
    """A pattern that cannot match, or cannot be matched in bounded time or space."""


class InvalidQuery(InvalidPlan):
    """A stored query that cannot be read, or that does not fit the columns of the documents."""


class InvalidAggregate(InvalidPlan):
    """An aggregate that cannot be computed."""


# ---------------------------------------------------------------- running a flow


class ExpressionFailed(MillstreamError):
    """An expression has no result for a row: text that is not a number, a division by zero, an overflow."""


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
    """A record that a step of a job cannot process, and whose dead letters no sink takes."""


# ---------------------------------------------------------------- writing results


class SinkUnavailable(MillstreamError):
    """A sink cannot be written now: it is down, locked or full. The same batch can be retried later."""

    exit_code = StorageError.exit_code


class ConnectorFailed(MillstreamError):
    """A source or sink raised an error of its own."""


class SinkFailed(MillstreamError):
    """A sink rejected a batch, and a retry would not help."""


class JobRunning(MillstreamError):
    """A job that is already running."""

    exit_code = 4


class JobChanged(MillstreamError):
    """A flow that does not fit the stored state of its job."""

    exit_code = 2
    has_lines = True


class OutputMismatch(MillstreamError):
    """A job and one of its outputs do not belong together: part of one was removed, or another run wrote there."""

    exit_code = 2


class StartOverRefused(MillstreamError):
    """A job cannot start over: an output has more than the job wrote, or a source has lost earlier records."""

    exit_code = 2


class StepFailed(MillstreamError):
    """A step of a job failed, and not because of a single record."""


class AskFailed(MillstreamError):
    """A flow failed on a request of a caller."""


class AskTimedOut(MillstreamError):
    """A request was not answered in time."""


class AlertNotSent(MillstreamError):
    """An alert could not be sent; it is tried again."""
