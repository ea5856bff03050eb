"""Clients of a local AWS, and what tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from aws_server import KEYS, REGION, AwsServer
from millstream.bridges.aws_client import AwsAccount


@contextmanager
def local_aws() -> Iterator[AwsServer]:
    pytest.importorskip("boto3")
    with patch.dict(os.environ, KEYS), closing(AwsServer()) as made:
        yield made


def client(server: AwsServer, service: str) -> Any:
    return AwsAccount(REGION, server.address).client(service)


def queue_url(server: AwsServer, name: str, **attributes: str) -> str:
    """Of a new queue."""
    with closing(client(server, "sqs")) as sqs:
        url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url


def received(server: AwsServer, url: str) -> list[dict[str, Any]]:
    """All messages of a queue, which are deleted."""
    found: list[dict[str, Any]] = []
    with closing(client(server, "sqs")) as sqs:
        while got := sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        ).get("Messages"):
            for message in got:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found += got
    return found
