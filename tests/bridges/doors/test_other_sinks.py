"""SNS, Kinesis, gateways for push messages, ZeroMQ, nanomsg and rotated files pass the public suite for sinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

import millstream as ms
from aws_server import REGION, AwsServer
from millstream.bridges.peers.nanomsg import parts_of
from millstream.connectors import Connector
from millstream.testing.connectors import Delivered, SinkSuite, SinkUnderTest, UnconnectedSinkSuite

from .. import aws
from ..receiver import Receiver, receiving
from .kills import killed_often
from .ports import free_port
from .test_suite import pause

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def local() -> Iterator[AwsServer]:
    with aws.local_aws() as made:
        yield made


def name_of(folder: Path) -> str:
    return folder.name.replace(".", "-")


class SnsUnderTest(SinkUnderTest):
    """A queue that is subscribed to the topic has what it got."""

    def __init__(self, server: AwsServer, name: str) -> None:
        self._server = server
        self.server_port = server.port
        self._queue = aws.queue_url(server, name)
        self._got: list[Delivered] = []
        with closing(aws.client(server, "sns")) as sns:
            self._topic = sns.create_topic(Name=name)["TopicArn"]
            arn = self._topic.replace(":sns:", ":sqs:")
            sns.subscribe(TopicArn=self._topic, Protocol="sqs", Endpoint=arn)

    def connector(self, port: int) -> Connector:
        return ms.sns(self._topic, region=REGION, endpoint=f"http://127.0.0.1:{port}")

    def delivered(self) -> list[Delivered]:
        for each in aws.received(self._server, self._queue):
            body = json.loads(each["Body"])
            id = body["MessageAttributes"]["millstream-id"]["Value"]
            self._got.append(Delivered(id, json.loads(body["Message"])["n"]))
        return self._got

    def restart_server(self) -> None:
        pause(self._server)


class TestSnsSink(SinkSuite):
    @pytest.fixture
    def sink(self, local: AwsServer, tmp_path: Path) -> SnsUnderTest:
        return SnsUnderTest(local, name_of(tmp_path))


class KinesisUnderTest(SinkUnderTest):
    has_ids: ClassVar[bool] = False

    def __init__(self, server: AwsServer, stream: str) -> None:
        self._server, self._stream = server, stream
        self.server_port = server.port
        with closing(aws.client(server, "kinesis")) as kinesis:
            kinesis.create_stream(StreamName=stream, ShardCount=1)

    def connector(self, port: int) -> Connector:
        return ms.kinesis(self._stream, "{name}", region=REGION, endpoint=f"http://127.0.0.1:{port}")

    def delivered(self) -> list[Delivered]:
        found: list[Delivered] = []
        with closing(aws.client(self._server, "kinesis")) as kinesis:
            (shard,) = kinesis.list_shards(StreamName=self._stream)["Shards"]
            at = kinesis.get_shard_iterator(
                StreamName=self._stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while records := (answer := kinesis.get_records(ShardIterator=at))["Records"]:
                found += [Delivered(None, orjson.loads(each["Data"])["n"]) for each in records]
                at = answer["NextShardIterator"]
        return found

    def restart_server(self) -> None:
        pause(self._server)


class TestKinesisSink(SinkSuite):
    @pytest.fixture
    def sink(self, local: AwsServer, tmp_path: Path) -> KinesisUnderTest:
        return KinesisUnderTest(local, name_of(tmp_path))


class PushUnderTest(SinkUnderTest):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.server_port = receiver.port

    def connector(self, port: int) -> Connector:
        return ms.push(f"http://127.0.0.1:{port}/send", {"to": "{name}", "n": "{n}"})

    def delivered(self) -> list[Delivered]:
        return [Delivered(headers["webhook-id"], int(json.loads(body)["n"])) for headers, body in self._receiver.got]

    def restart_server(self) -> None:
        self._receiver.answer([503] * 5)


class TestPush(SinkSuite):
    @pytest.fixture
    def sink(self) -> Iterator[PushUnderTest]:
        with receiving() as receiver:
            yield PushUnderTest(receiver)


# ---------------------------------------------------------------- without a broker


class PeerUnderTest(SinkUnderTest):
    """A receiver that pulls."""

    may_lose: ClassVar[str] = "what either library has taken, when a process or a connection ends"

    def __init__(self) -> None:
        self.server_port = free_port()
        self._got: list[Delivered] = []
        self.start()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def restart_server(self) -> None:
        self.close()
        self.start()

    def _note(self, parts: list[bytes]) -> None:
        *_, id, body = parts
        self._got.append(Delivered(id.decode(), orjson.loads(body)["n"]))


class ZeroMqUnderTest(PeerUnderTest):
    def start(self) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(f"tcp://127.0.0.1:{self.server_port}")

    def close(self) -> None:
        self._context.destroy(linger=0)

    def connector(self, port: int) -> Connector:
        return ms.zeromq(f"tcp://127.0.0.1:{port}")

    def delivered(self) -> list[Delivered]:
        while self._socket.poll(0):
            self._note(self._socket.recv_multipart())
        return self._got


class TestZeroMqSink(SinkSuite):
    @pytest.fixture
    def sink(self) -> Iterator[ZeroMqUnderTest]:
        pytest.importorskip("zmq")
        with closing(ZeroMqUnderTest()) as made:
            yield made


class NanomsgUnderTest(PeerUnderTest):
    def start(self) -> None:
        import pynng

        self._socket: Any = pynng.Pull0(recv_buffer_size=1000)
        self._socket.recv_max_size = 0
        self._socket.listen(f"tcp://127.0.0.1:{self.server_port}")

    def close(self) -> None:
        self._socket.close()

    def connector(self, port: int) -> Connector:
        return ms.nanomsg(f"tcp://127.0.0.1:{port}")

    def delivered(self) -> list[Delivered]:
        import pynng

        try:
            while True:
                self._note(parts_of(self._socket.recv(block=False)))
        except pynng.TryAgain:
            return self._got


class TestNanomsgSink(SinkSuite):
    @pytest.fixture
    def sink(self) -> Iterator[NanomsgUnderTest]:
        pytest.importorskip("pynng")
        with closing(NanomsgUnderTest()) as made:
            yield made


# ---------------------------------------------------------------- files


class RotatedUnderTest(SinkUnderTest):
    """Each row is there once."""

    has_ids: ClassVar[bool] = False
    server_port = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def connector(self, port: int) -> Connector:
        return ms.rotating_file(self._folder / "rows.log", max_size="1 kB", keep=None)

    def delivered(self) -> list[Delivered]:
        lines = [line for path in self._folder.glob("rows.log*") for line in path.read_bytes().splitlines()]
        found = [Delivered(None, orjson.loads(line)["n"]) for line in lines]
        assert len({each.n for each in found}) == len(found), "no row is there twice"
        return found

    def restart_server(self) -> None:
        return


class TestRotatedFile(UnconnectedSinkSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> RotatedUnderTest:
        folder = tmp_path / "rotated"
        folder.mkdir()
        return RotatedUnderTest(folder)


TestSnsSinkKilledOften = killed_often(TestSnsSink)
TestKinesisSinkKilledOften = killed_often(TestKinesisSink)
TestPushKilledOften = killed_often(TestPush)
TestZeroMqSinkKilledOften = killed_often(TestZeroMqSink)
TestNanomsgSinkKilledOften = killed_often(TestNanomsgSink)
TestRotatedFileKilledOften = killed_often(TestRotatedFile)
