"""SQS, SNS and Kinesis, with moto's server: deleted after the append, shards with checkpoints, partial failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from aws_server import REGION, AwsServer
from millstream.bridges.aws import sqs as sqs_bridge
from millstream.bridges.aws.client import AwsAccount
from millstream.bridges.aws.kinesis import KinesisBridge, KinesisSource
from millstream.bridges.aws.sinks import KINESIS, SQS, parts
from millstream.bridges.aws.sqs import SqsBridge, SqsSource
from millstream.bridges.brokers.answered_sink import Outgoing
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.landing import Landing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import open_sink
from millstream.errors import ConnectorFailed, InvalidInput, SinkFailed, SinkUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema
from waiting import until

from .aws import client, failing_in_part, local_aws, queue_url, received
from .support import in_thread, records, values

NUMBERS = count()
SCHEMA = Schema.of("name string, n int")


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsServer]:
    with local_aws() as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"orders-{next(NUMBERS)}"


@contextmanager
def from_queue(log: EmbeddedLog, aws: AwsServer, name: str, **settings: Any) -> Iterator[Landing]:
    with Landing(log, "sqs", ["orders"]) as landing:
        source = SqsSource(AwsAccount(REGION, aws.address), name, **settings)
        with in_thread(SqsBridge(source, landing, "orders")):
            yield landing


def stored(log: EmbeddedLog, count: int) -> list[str]:
    until(lambda: len(records(log, "orders")) >= count, "the messages are stored")
    return sorted(value.decode() for value in values(log, "orders"))


# ---------------------------------------------------------------- without a service


def test_batches_keep_the_limits_of_a_request() -> None:
    messages = [Outgoing(n, str(n), "", b"x" * 100_000) for n in range(7)]
    assert [len(part) for part in parts(messages, SQS)] == [2, 2, 2, 1]
    small = [Outgoing(n, str(n), "", b"x") for n in range(1201)]
    assert [len(part) for part in parts(small, KINESIS)] == [500, 500, 201]


@pytest.mark.parametrize(
    "made",
    [
        lambda: ms.sqs("orders.fifo"),
        lambda: ms.sqs("orders", group="{name}"),
        lambda: ms.kinesis("clicks", ""),
        lambda: SqsSource(AwsAccount(), "orders", visibility_seconds=0),
    ],
)
def test_settings_that_cannot_work(made: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput):
        made()


# ---------------------------------------------------------------- SQS and SNS into a topic


@pytest.mark.more
def test_messages_are_deleted_when_they_are_stored(orders: EmbeddedLog, aws: AwsServer, name: str) -> None:
    url = queue_url(aws, name)
    with closing(client(aws, "sqs")) as sqs, from_queue(orders, aws, name):
        for n in range(30):
            sqs.send_message(
                QueueUrl=url, MessageBody=f"{n:02}", MessageAttributes={"r": {"DataType": "String", "StringValue": "x"}}
            )
        assert stored(orders, 30) == [f"{n:02}" for n in range(30)]
        until(lambda: _counts(sqs, url) == (0, 0), "the queue is empty")
    assert dict(records(orders, "orders")[0].headers)["r"] == b"x"


@pytest.mark.more
def test_a_message_that_was_not_deleted_is_stored_once(
    orders: EmbeddedLog, aws: AwsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended between storing and deleting: it is visible again after the timeout."""
    url = queue_url(aws, name)
    with closing(client(aws, "sqs")) as sqs:
        sqs.send_message(QueueUrl=url, MessageBody="1")
        with monkeypatch.context() as patched:
            patched.setattr(SqsBridge, "_delete", lambda self, messages: None)
            with from_queue(orders, aws, name, visibility_seconds=1):
                stored(orders, 1)
        with from_queue(orders, aws, name, visibility_seconds=1) as landing:
            until(lambda: landing.counts.duplicates, "it was delivered again")
            until(lambda: _counts(sqs, url) == (0, 0), "now it is deleted")
    assert stored(orders, 1) == ["1"]


@pytest.mark.more
def test_it_is_known_how_far_the_bridges_are_behind(
    orders: EmbeddedLog, aws: AwsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs_bridge, "COUNT_SECONDS", 3600.0)
    url = queue_url(aws, name)
    with closing(client(aws, "sqs")) as sqs, Landing(orders, "sqs", ["orders"]) as landing:
        for _ in range(3):
            sqs.send_message(QueueUrl=url, MessageBody="1")
        bridge = SqsBridge(SqsSource(AwsAccount(REGION, aws.address), name), landing, "orders")
        with in_thread(bridge):
            stored(orders, 3)
        assert bridge.behind() == (3, "messages"), "when it began"
    with closing(client(aws, "kinesis")) as kinesis, PositionedLanding(orders, "kinesis", "orders") as positioned:
        kinesis.create_stream(StreamName=name, ShardCount=1)
        put(kinesis, name, range(2))
        stream = KinesisBridge(KinesisSource(AwsAccount(REGION, aws.address), name), positioned)
        with in_thread(stream):
            stored(orders, 5)
            until(lambda: stream.behind() == (0, "seconds"), "it has caught up")


def _counts(sqs: Any, url: str) -> tuple[int, int]:
    """Messages that are visible, and hidden."""
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


@pytest.mark.more
def test_a_queue_that_does_not_exist(orders: EmbeddedLog, aws: AwsServer, name: str) -> None:
    with Landing(orders, "sqs", ["orders"]) as landing, pytest.raises(ConnectorFailed, match="NonExistentQueue"):
        SqsBridge(SqsSource(AwsAccount(REGION, aws.address), name), landing, "orders").run()


@pytest.mark.more
def test_rows_go_through_sns_and_sqs_and_repeated_ones_are_stored_once(
    orders: EmbeddedLog, aws: AwsServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = queue_url(aws, name)
    with closing(client(aws, "sns")) as sns, closing(client(aws, "sqs")) as sqs:
        topic = sns.create_topic(Name=name)["TopicArn"]
        queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
    with from_queue(orders, aws, name, from_sns=True, id_attribute="millstream-id") as landing:
        with monkeypatch.context() as patched:  # the process is killed before it records the batch
            patched.setattr(FileLedger, "record", lambda *_: None)
            write(ms.sns(topic, region=REGION, endpoint=aws.address), tmp_path, rows(25))
        write(ms.sns(topic, region=REGION, endpoint=aws.address), tmp_path, rows(25))
        until(lambda: landing.counts.stored + landing.counts.duplicates == 50, "all were delivered")
    assert sorted(json.loads(value)["n"] for value in values(orders, "orders")) == list(range(25))


# ---------------------------------------------------------------- Kinesis into a topic


@contextmanager
def from_stream(log: EmbeddedLog, aws: AwsServer, name: str, **more: Any) -> Iterator[PositionedLanding]:
    source = KinesisSource(AwsAccount(REGION, aws.address), name, **more)
    with PositionedLanding(log, "kinesis", "orders") as landing, in_thread(KinesisBridge(source, landing)):
        yield landing


@pytest.mark.more
def test_shards_are_read_from_their_checkpoints_also_after_a_split(
    orders: EmbeddedLog, aws: AwsServer, name: str
) -> None:
    with closing(client(aws, "kinesis")) as kinesis:
        kinesis.create_stream(StreamName=name, ShardCount=2)
        put(kinesis, name, range(20))
        with from_stream(orders, aws, name):
            assert stored(orders, 20) == [f"{n:02}" for n in range(20)]
        put(kinesis, name, range(20, 30))
        shard = kinesis.list_shards(StreamName=name)["Shards"][0]
        middle = int(shard["HashKeyRange"]["EndingHashKey"]) // 2
        kinesis.split_shard(StreamName=name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        put(kinesis, name, range(30, 40))
        with from_stream(orders, aws, name) as landing:
            assert stored(orders, 40) == [f"{n:02}" for n in range(40)]
            until(lambda: landing.counts.stored == 20, "only the new ones were stored")
    shards = {dict(record.headers)["kinesis-shard"] for record in records(orders, "orders")}
    assert len(shards) >= 2


@pytest.mark.more
def test_a_stream_that_was_created_again_is_noticed(orders: EmbeddedLog, aws: AwsServer, name: str) -> None:
    with closing(client(aws, "kinesis")) as kinesis:

        def created() -> Any:
            summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
            return summary["StreamCreationTimestamp"]

        def is_new() -> bool:
            kinesis.delete_stream(StreamName=name)
            kinesis.create_stream(StreamName=name, ShardCount=1)
            return bool(created() != first)

        kinesis.create_stream(StreamName=name, ShardCount=1)
        first = created()
        put(kinesis, name, range(10))
        with from_stream(orders, aws, name):
            stored(orders, 10)
        until(is_new, "there is a stream with another time of creation")
        put(kinesis, name, range(10, 20))
        source = KinesisSource(AwsAccount(REGION, aws.address), name)
        with (
            PositionedLanding(orders, "kinesis", "orders") as landing,
            pytest.raises(ConnectorFailed, match="created again") as noticed,
        ):
            KinesisBridge(source, landing).run()
        assert "--when-recreated earliest" in str(noticed.value)
        with from_stream(orders, aws, name, when_recreated="earliest"):
            assert stored(orders, 20) == [f"{n:02}" for n in range(20)]
        put(kinesis, name, range(20, 22))
        with from_stream(orders, aws, name):  # its own positions are valid again
            assert stored(orders, 22) == [f"{n:02}" for n in range(22)]


def put(kinesis: Any, name: str, numbers: Sequence[int]) -> None:
    entries = [{"Data": f"{n:02}".encode(), "PartitionKey": str(n)} for n in numbers]
    assert kinesis.put_records(StreamName=name, Records=entries)["FailedRecordCount"] == 0


# ---------------------------------------------------------------- out


def rows(count: int) -> pa.Table:
    columns = [pa.array([f"row-{n}" for n in range(count)]), pa.array(range(count), pa.int32())]
    return pa.Table.from_arrays(columns, schema=SCHEMA.arrow)


def write(connector: Any, folder: Path, given: pa.Table) -> list[str]:
    """The reasons why rows were rejected."""
    reasons: list[str] = []
    where = {"job": "job", "step": "out", "broker": folder / "log", "folder": folder / "job"}
    with closing(open_sink(connector, SCHEMA, **where)) as sink:
        sink.write(0, given, None, lambda found: reasons.extend(each.reason for each in found))
    return reasons


@pytest.mark.more
def test_rows_of_a_fifo_queue_stay_in_order(aws: AwsServer, name: str, tmp_path: Path) -> None:
    url = queue_url(aws, f"{name}.fifo", FifoQueue="true")
    assert not write(ms.sqs(f"{name}.fifo", group="all", region=REGION, endpoint=aws.address), tmp_path, rows(25))
    found = received(aws, url)
    assert [json.loads(each["Body"])["n"] for each in found] == list(range(25))
    assert len({each["MessageAttributes"]["millstream-id"]["StringValue"] for each in found}) == 25


@pytest.mark.more
def test_a_row_that_is_too_large_is_rejected_and_the_others_are_sent(aws: AwsServer, name: str, tmp_path: Path) -> None:
    url = queue_url(aws, name)
    columns = [pa.array(["a", "x" * 300_000, "b"]), pa.array(range(3), pa.int32())]
    given = pa.Table.from_arrays(columns, schema=SCHEMA.arrow)
    reasons = write(ms.sqs(name, region=REGION, endpoint=aws.address), tmp_path, given)
    assert reasons == ["it is longer than 262,144 bytes"]
    assert sorted(json.loads(each["Body"])["n"] for each in received(aws, url)) == [0, 2]


@pytest.mark.more
def test_what_failed_of_a_batch_is_sent_again_and_only_that(aws: AwsServer, name: str, tmp_path: Path) -> None:
    url = queue_url(aws, name)
    with failing_in_part(aws, lambda count: list(range(0, count, 3)) if count > 1 else []) as (address, sizes):
        assert not write(ms.sqs(name, region=REGION, endpoint=address), tmp_path, rows(10))
    assert sizes == [10, 4, 2, 1]
    assert sorted(json.loads(each["Body"])["n"] for each in received(aws, url)) == list(range(10))


@pytest.mark.more
def test_what_is_never_accepted_makes_the_job_wait(
    aws: AwsServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.bridges.aws.sinks.PAUSE_SECONDS", 0.001)
    with (
        failing_in_part(aws, lambda count: list(range(count))) as (address, sizes),
        pytest.raises(SinkUnavailable, match="3 of 3"),
    ):
        write(ms.kinesis(name, "{name}", region=REGION, endpoint=address), tmp_path, rows(3))
    assert set(sizes) == {3}


@pytest.mark.more
def test_rows_go_to_a_stream(aws: AwsServer, name: str, tmp_path: Path, orders: EmbeddedLog) -> None:
    with closing(client(aws, "kinesis")) as kinesis:
        kinesis.create_stream(StreamName=name, ShardCount=2)
    connector = ms.kinesis(name, "{name}", payload="name", region=REGION, endpoint=aws.address)
    assert not write(connector, tmp_path, rows(1200))
    with from_stream(orders, aws, name):
        assert stored(orders, 1200) == sorted(f"row-{n}" for n in range(1200))


@pytest.mark.more
@pytest.mark.parametrize("made", [ms.sqs, lambda name, **how: ms.kinesis(name, "k", **how)])
def test_a_target_that_does_not_exist(made: Any, aws: AwsServer, name: str, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="AWS answers"):
        write(made(name, region=REGION, endpoint=aws.address), tmp_path, rows(1))
