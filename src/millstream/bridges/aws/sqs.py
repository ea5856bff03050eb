"""Messages of an SQS queue into a topic: each is deleted from the queue when it is durable.

A message that is received and not deleted becomes visible again after the visibility timeout. It has the same id, so it
is stored once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.aws.client import AwsAccount, call
from millstream.bridges.landing import Landing
from millstream.bridges.reports import Behind
from millstream.errors import ConnectorFailed, InvalidInput, MillstreamError, SourceUnavailable

TOGETHER_MAX = 200
REQUEST_MAX = 10
"""Messages in one request of SQS."""
WAIT_SECONDS = 1
COUNT_SECONDS = 10.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 60.0
VISIBILITY_SECONDS, VISIBILITY_SECONDS_MAX = 60, 43_200
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class SqsSource:
    """Which messages."""

    account: AwsAccount
    queue: str
    """Its name."""
    visibility_seconds: int = VISIBILITY_SECONDS
    """How long a message that was received is hidden from others: longer than it takes to store it."""
    id_attribute: str | None = None
    """The attribute with a stable id, if that which SQS gave the message is not enough: senders may repeat it."""
    from_sns: bool = False
    """Whether bodies are notifications of SNS: their message becomes the record."""
    bytes_max: int = 1 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.visibility_seconds <= VISIBILITY_SECONDS_MAX:
            raise InvalidInput(
                f"the visibility timeout cannot be {self.visibility_seconds} s",
                next_step=f"from 1 to {VISIBILITY_SECONDS_MAX:,}",
            )


class SqsBridge:
    """Receives, stores, deletes, and receives again: meanwhile the other messages wait in the queue."""

    def __init__(self, source: SqsSource, landing: Landing, topic: str) -> None:
        self._source = source
        self._landing = landing
        self._topic = topic
        self._where = f"sqs {source.queue}"
        self._client = source.account.client("sqs")
        self._url = ""
        self._stopped = threading.Event()
        self._behind: Behind | None = None
        self._count_at: float | None = 0.0
        self.on_ready: Callable[[], None] = lambda: None
        landing.on_failure = self.stop

    def run(self) -> None:
        """Until it is stopped. A service that does not answer is waited for."""
        pause = RETRY_SECONDS
        while not self._stopped.is_set():
            try:
                if not self._url:
                    self._url = self._call(self._client.get_queue_url, QueueName=self._source.queue)["QueueUrl"]
                    self.on_ready()
                self._count()
                self._store(self._received())
                pause = RETRY_SECONDS
            except SourceUnavailable as error:
                logger.warning("%s; trying again", error.what)
                self._stopped.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    def behind(self) -> Behind | None:
        return self._behind

    def _count(self) -> None:
        """What waits in the queue. A user may receive without the permission to ask for that."""
        if self._count_at is None or time.monotonic() < self._count_at:
            return
        name = "ApproximateNumberOfMessages"
        try:
            answer = self._call(self._client.get_queue_attributes, QueueUrl=self._url, AttributeNames=[name])
        except ConnectorFailed:
            self._count_at = None
        else:
            self._behind = Behind(int(answer["Attributes"][name]), "messages")
            self._count_at = time.monotonic() + COUNT_SECONDS

    def _call(self, request: Callable[..., Any], **arguments: Any) -> Any:
        return call(lambda: request(**arguments), SourceUnavailable, ConnectorFailed, self._where)

    def _received(self) -> list[Mapping[str, Any]]:
        """It waits for the first message, and takes what is there."""
        found: list[Mapping[str, Any]] = []
        while len(found) < TOGETHER_MAX:
            answer = self._call(
                self._client.receive_message,
                QueueUrl=self._url,
                MaxNumberOfMessages=REQUEST_MAX,
                VisibilityTimeout=self._source.visibility_seconds,
                WaitTimeSeconds=0 if found else WAIT_SECONDS,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            )
            messages = answer.get("Messages", [])
            found += messages
            if len(messages) < REQUEST_MAX:
                break
        return found

    def _store(self, messages: Sequence[Mapping[str, Any]]) -> None:
        if not messages:
            return
        outcomes = self._landing.land([self._arrival(message) for message in messages])
        failed = [outcome for outcome in outcomes if isinstance(outcome, MillstreamError)]
        pairs = zip(messages, outcomes, strict=True)
        self._delete([message for message, outcome in pairs if not isinstance(outcome, MillstreamError)])
        if failed:
            raise failed[0]

    def _delete(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """What cannot be deleted now comes again, and is recognized."""
        for start in range(0, len(messages), REQUEST_MAX):
            part = messages[start : start + REQUEST_MAX]
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(part)]
            answer = self._call(self._client.delete_message_batch, QueueUrl=self._url, Entries=entries)
            if answer.get("Failed"):
                logger.warning("%d messages of %s could not be deleted, and come again", len(part), self._where)

    def _arrival(self, message: Mapping[str, Any]) -> Arrival:
        attributes = {name: _text(given) for name, given in message.get("MessageAttributes", {}).items()}
        made = Arrival(self._topic, message["Body"].encode(), id=message["MessageId"], origin=self._where)
        group = message.get("Attributes", {}).get("MessageGroupId")
        made.key = None if group is None else group.encode()
        if self._source.from_sns:
            attributes |= _unwrap(made)
        if self._source.id_attribute is not None:
            made.id = attributes.get(self._source.id_attribute, made.id)
        made.headers = tuple((name, text.encode()) for name, text in attributes.items())
        return made.cut_to(self._source.bytes_max)


def _text(attribute: Mapping[str, Any]) -> str:
    return str(attribute.get("StringValue") or attribute.get("BinaryValue", b"").decode("latin-1"))


def _unwrap(arrival: Arrival) -> dict[str, str]:
    """Replaces a notification by its message, and returns the attributes."""
    try:
        envelope = orjson.loads(arrival.value)
        arrival.value, arrival.id = envelope["Message"].encode(), envelope["MessageId"]
        return {str(name): str(given["Value"]) for name, given in envelope.get("MessageAttributes", {}).items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        arrival.fault = "it is not a notification of SNS"
        return {}
