"""Clients of a local AWS, and what tests share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from aws_server import KEYS, REGION, AwsServer
from millstream.bridges.aws.client import AwsAccount


@contextmanager
def local_aws() -> Iterator[AwsServer]:
    pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        with closing(AwsServer()) as made:
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


Refuse = Callable[[int], list[int]]
"""Of a batch with so many entries, the places of those that fail."""


@contextmanager
def failing_in_part(server: AwsServer, refuse: Refuse) -> Iterator[tuple[str, list[int]]]:
    """The address of a proxy in front of the server, and the sizes of the batches that came.

    The entries that fail do not reach the server: moto itself never fails part of a batch.
    """
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            action = self.headers.get("x-amz-target", "").rpartition(".")[2]
            if action == "SendMessageBatch":
                self._answer(200, self._send_message_batch(json.loads(body)))
            elif action == "PutRecords":
                self._answer(200, self._put_records(json.loads(body)))
            else:
                self._answer(*self._forwarded(body))

        def _send_message_batch(self, request: dict[str, Any]) -> bytes:
            entries = request["Entries"]
            sizes.append(len(entries))
            failing = [entries[place] for place in refuse(len(entries))]
            request["Entries"] = [entry for entry in entries if entry not in failing]
            answer = json.loads(self._forwarded(json.dumps(request).encode())[1]) if request["Entries"] else {}
            answer["Failed"] = [{"Id": each["Id"], "SenderFault": False, "Code": "InternalError"} for each in failing]
            return json.dumps(answer).encode()

        def _put_records(self, request: dict[str, Any]) -> bytes:
            """None of them is stored."""
            sizes.append(len(request["Records"]))
            failed = [{"ErrorCode": "ProvisionedThroughputExceededException"} for _ in request["Records"]]
            return json.dumps({"FailedRecordCount": len(failed), "Records": failed}).encode()

        def _forwarded(self, body: bytes) -> tuple[int, bytes]:
            with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/x-amz-json-1.0")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *ignored: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}", sizes
        proxy.shutdown()
