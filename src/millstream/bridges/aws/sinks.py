"""Sinks that send every row to SQS, SNS or Kinesis, in batches: what failed of a batch is sent again, and only that.

At least once: a message that is repeated has the same id, in the attribute `millstream-id`, or for Kinesis in the row's
own columns only. Queues and topics whose names end in `.fifo` recognize repeated ids by themselves, for five minutes.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.aws.client import PASSING_CODES, AwsAccount, call, installed
from millstream.bridges.brokers.answered_sink import AnsweredEndpoint, AnsweredSink, Answers, Outgoing
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink
from millstream.errors import SinkFailed, SinkUnavailable

TRIES = 5
PAUSE_SECONDS = 0.1
ENTRY_BYTES = 200
"""What an entry needs beside its body: id and attributes."""
FIFO = ".fifo"
GROUP_BYTES_MAX = 128
KEY_BYTES_MAX = 256
PASSING = "passing"


@dataclass(frozen=True)
class Service:
    """What one request may have."""

    name: str
    entries_max: int
    request_bytes_max: int
    entry_bytes_max: int


SQS = Service("sqs", 10, 256 << 10, 256 << 10)
SNS = Service("sns", 10, 256 << 10, 256 << 10)
KINESIS = Service("kinesis", 500, 5 << 20, 1 << 20)


@dataclass(frozen=True)
class AwsTarget(AnsweredEndpoint):
    service: Service
    account: AwsAccount
    destination: str
    """The name of a queue or stream, or the ARN of a topic."""
    pattern: TopicPattern
    """The group of a FIFO queue or topic, or the partition key of a stream."""
    payload: str | None = None

    @property
    def name(self) -> str:
        return f"{self.service.name} {self.destination}"

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return SINKS[self.service.name](self, writing)

    def __str__(self) -> str:
        return f"{self.service.name}({self.destination})"


def sqs(
    queue: str,
    *,
    group: str = "",
    payload: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
) -> AwsTarget:
    """A sink that sends every row to a queue of SQS, as JSON or as the text of the column `payload`.

    A queue whose name ends in `.fifo` needs a `group`, in which order is kept; columns in braces are part of it. Keys
    are those that boto3 finds. `endpoint` is the URL of a service that is not Amazon's.
    """
    return _target(SQS, queue, _group(queue, group), payload, AwsAccount(region, endpoint))


def sns(
    topic: str,
    *,
    group: str = "",
    payload: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
) -> AwsTarget:
    """A sink that publishes every row to a topic of SNS, named by its ARN; the rest is as for `ms.sqs`."""
    return _target(SNS, topic, _group(topic, group), payload, AwsAccount(region, endpoint))


def kinesis(
    stream: str,
    key: str,
    *,
    payload: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
) -> AwsTarget:
    """A sink that puts every row into a stream of Kinesis. Rows with the same `key`, such as `{user}`, share a shard.

    Kinesis has no attributes, so a row that is repeated can only be recognized by its columns.
    """
    text = arguments.text(key, "a partition key must be a string", "kinesis('clicks', '{user}')")
    pattern = TopicPattern(text, "kinesis('clicks', '{user}')", unusable="", bytes_max=KEY_BYTES_MAX)
    return _target(KINESIS, stream, pattern, payload, AwsAccount(region, endpoint))


def _group(target: str, group: str) -> TopicPattern:
    if isinstance(target, str) and target.endswith(FIFO) != bool(group):
        step = "give group='{column}'" if target.endswith(FIFO) else "leave it out"
        raise arguments.refused("a group is for queues and topics that end in .fifo, and they need one", step)
    return TopicPattern(group, "sqs('orders.fifo', group='{user}')", unusable="\0", bytes_max=GROUP_BYTES_MAX)


def _target(service: Service, target: str, key: TopicPattern, payload: str | None, account: AwsAccount) -> AwsTarget:
    text = arguments.text(target, f"{service.name} needs a name", f"{service.name}('orders')")
    return AwsTarget(service, account, text, key, payload)


class AwsSink(AnsweredSink):
    def __init__(self, endpoint: AwsTarget, writing: Writing) -> None:
        super().__init__(str(endpoint), writing, endpoint.pattern, endpoint.payload)
        self._endpoint = endpoint
        self._client = endpoint.account.client(endpoint.service.name)

    def close(self) -> None:
        self._client.close()

    @abstractmethod
    def _request(self, messages: Sequence[Outgoing]) -> Mapping[str, str | None]:
        """Sends one batch. By id: None if it was accepted, PASSING if it is to be sent again, else why it was not."""

    def _send(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        service = self._endpoint.service
        sendable = []
        for message in messages:
            if reason := self._unsendable(message):
                answers[message.id] = reason
            else:
                sendable.append(message)
        for part in parts(sendable, service):
            self._send_part(part, answers)

    def _unsendable(self, message: Outgoing) -> str | None:
        if len(message.payload) + ENTRY_BYTES > self._endpoint.service.entry_bytes_max:
            return f"it is longer than {self._endpoint.service.entry_bytes_max:,} bytes"
        return None

    def _send_part(self, part: Sequence[Outgoing], answers: Answers) -> None:
        left = list(part)
        for number in range(TRIES):
            if number:
                time.sleep(PAUSE_SECONDS * 2**number)
            for id, answer in self._request(left).items():
                if answer != PASSING:
                    answers[id] = answer
            left = [message for message in left if message.id not in answers]
            if not left:
                return
        raise SinkUnavailable(
            f"{len(left)} of {len(part)} messages were not accepted in {TRIES} tries",
            where=self._where,
            next_step="they are sent again later; the service may limit the rate",
        )

    def _call(self, request: Callable[..., Any], **given: Any) -> Any:
        return call(lambda: request(**given), SinkUnavailable, SinkFailed, self._where)

    def _in_group(self, message: Outgoing) -> dict[str, str]:
        """For FIFO queues and topics, which keep the order and drop repeated ids."""
        if not self._endpoint.destination.endswith(FIFO):
            return {}
        return {"MessageGroupId": message.topic, "MessageDeduplicationId": message.id}


class SqsSink(AwsSink):
    _url = ""

    def _request(self, messages: Sequence[Outgoing]) -> Mapping[str, str | None]:
        if not self._url:
            self._url = self._call(self._client.get_queue_url, QueueName=self._endpoint.destination)["QueueUrl"]
        entries = [{"MessageBody": _text(each), **_attributes(each), **self._in_group(each)} for each in messages]
        answer = self._call(self._client.send_message_batch, QueueUrl=self._url, Entries=_numbered(entries))
        return _outcomes(messages, answer)

    def _unsendable(self, message: Outgoing) -> str | None:
        return super()._unsendable(message) or _not_text(message)


class SnsSink(AwsSink):
    def _request(self, messages: Sequence[Outgoing]) -> Mapping[str, str | None]:
        entries = [{"Message": _text(each), **_attributes(each), **self._in_group(each)} for each in messages]
        answer = self._call(
            self._client.publish_batch,
            TopicArn=self._endpoint.destination,
            PublishBatchRequestEntries=_numbered(entries),
        )
        return _outcomes(messages, answer)

    def _unsendable(self, message: Outgoing) -> str | None:
        return super()._unsendable(message) or _not_text(message)


class KinesisSink(AwsSink):
    def _request(self, messages: Sequence[Outgoing]) -> Mapping[str, str | None]:
        records = [{"Data": each.payload, "PartitionKey": each.topic} for each in messages]
        answer = self._call(self._client.put_records, StreamName=self._endpoint.destination, Records=records)
        codes = [record.get("ErrorCode") for record in answer["Records"]]
        return {
            message.id: PASSING if code in PASSING_CODES else code
            for message, code in zip(messages, codes, strict=True)
        }


SINKS: dict[str, type[AwsSink]] = {"sqs": SqsSink, "sns": SnsSink, "kinesis": KinesisSink}


def parts(messages: Sequence[Outgoing], service: Service) -> Iterator[list[Outgoing]]:
    """As few batches as the limits of a request allow, in order."""
    part: list[Outgoing] = []
    size = 0
    for message in messages:
        more = len(message.payload) + ENTRY_BYTES
        if part and (len(part) == service.entries_max or size + more > service.request_bytes_max):
            yield part
            part, size = [], 0
        part.append(message)
        size += more
    if part:
        yield part


def _numbered(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"Id": str(number), **entry} for number, entry in enumerate(entries)]


def _outcomes(messages: Sequence[Outgoing], answer: Mapping[str, Any]) -> Mapping[str, str | None]:
    found: dict[str, str | None] = {messages[int(each["Id"])].id: None for each in answer.get("Successful", ())}
    for each in answer.get("Failed", ()):
        reason = f"{each['Code']}: {each.get('Message', '')}"
        found[messages[int(each["Id"])].id] = reason if each.get("SenderFault") else PASSING
    return found


def _attributes(message: Outgoing) -> dict[str, Any]:
    return {"MessageAttributes": {ID_HEADER: {"DataType": "String", "StringValue": message.id}}}


def _text(message: Outgoing) -> str:
    return message.payload.decode()


def _not_text(message: Outgoing) -> str | None:
    try:
        return None if message.payload.decode() else "an empty message cannot be sent"
    except UnicodeDecodeError:
        return "it is not text"
