"""The bridge for Kinesis, which keeps its own positions, passes the public suite."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aws_server import KEYS, REGION, AwsServer
from millstream.bridges.aws.client import AwsAccount
from millstream.bridges.aws.kinesis import KinesisBridge, KinesisSource
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.testing.connectors import BridgeSuite, BridgeUnderTest, Message

from .. import aws
from .kills import killed_often
from .test_suite import pause

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def aws_server() -> Iterator[AwsServer]:
    with aws.local_aws() as made:
        yield made


def run_kinesis(landing: PositionedLanding, ready: Any, port: int, stream: str) -> None:
    os.environ |= KEYS
    account = AwsAccount(REGION, f"http://127.0.0.1:{port}", timeout_seconds=2)
    made = KinesisBridge(KinesisSource(account, stream), landing)
    made.on_ready = ready
    made.run()


class KinesisUnderTest(BridgeUnderTest):
    has_ids: ClassVar[bool] = False
    keeps_positions: ClassVar[bool] = True

    def __init__(self, server: AwsServer, stream: str) -> None:
        self._server, self._stream = server, stream
        self.server_port = server.port
        with closing(aws.client(server, "kinesis")) as kinesis:
            kinesis.create_stream(StreamName=stream, ShardCount=2)

    def runner(self, port: int) -> Any:
        return functools.partial(run_kinesis, port=port, stream=self._stream)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with closing(aws.client(self._server, "kinesis")) as kinesis:
            for message in messages:
                try:
                    kinesis.put_record(StreamName=self._stream, Data=message.body, PartitionKey=message.id)
                except kinesis.exceptions.ClientError as error:
                    if "length less than or equal" not in str(error):  # the message that is too large
                        raise

    def restart_server(self) -> None:
        pause(self._server)


class TestKinesis(BridgeSuite):
    @pytest.fixture
    def bridge(self, aws_server: AwsServer, tmp_path: Path) -> KinesisUnderTest:
        return KinesisUnderTest(aws_server, tmp_path.name.replace(".", "-"))


TestKinesisKilledOften = killed_often(TestKinesis)
