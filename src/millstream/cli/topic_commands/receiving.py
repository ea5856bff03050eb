"""A message is acknowledged after its work is done: it was printed and flushed, or its command exited with 0."""

from __future__ import annotations

import errno
import os
import subprocess

from millstream.cli.failures import warn
from millstream.cli.rendering import OutputClosed, Rendering, write_lines
from millstream.cli.session import Session
from millstream.errors import DeliveryExpired, InvalidInput
from millstream.log import Message, Queue
from millstream.records import Schema

TOGETHER = 100
FOLLOW_SECONDS = 1.0


class Receiver:
    def __init__(self, session: Session, queue: Queue, schema: Schema | None, wait_seconds: float) -> None:
        self._session = session
        self._queue = queue
        self._rendering = Rendering(schema, "json" if session.json else "value")
        self._wait_seconds = wait_seconds
        self._extends = True

    def print(self, limit: int | None, *, follow: bool, acknowledge: bool) -> None:
        """Prints messages. Those only shown go back at the end, or they would be delivered again meanwhile."""
        shown: list[Message] = []
        count = 0
        while limit is None or count < limit:
            messages = self._next(TOGETHER if limit is None else min(TOGETHER, limit - count), follow)
            if not messages and not follow:
                break
            try:
                write_lines([self._rendering.message(message) for message in messages])
            except OutputClosed as closed:
                if acknowledge and closed.lines:
                    self._queue.acknowledge(messages[: closed.lines])
                raise
            count += len(messages)
            if acknowledge:
                self._queue.acknowledge(messages)
            else:
                shown += messages
        for message in shown:
            message.refuse("only shown")

    def execute(self, command: str, limit: int | None, *, follow: bool) -> tuple[int, int]:
        """Runs the command for each message; returns how many were acknowledged and how many rejected."""
        done = refused = 0
        while limit is None or done + refused < limit:
            messages = self._next(1, follow)
            if not messages:
                if follow:
                    continue
                break
            [message] = messages
            code: int | None = None
            try:
                try:
                    code = self._run(command, message)
                except Undeliverable as error:  # it would fail in the same way at every try
                    refused += 1
                    message.refuse(str(error), dead=True)
                    continue
                if code == 0:
                    message.acknowledge()
                    done += 1
                else:
                    refused += 1
                    message.refuse(f"the command ended with exit code {code}")
            except DeliveryExpired as error:
                warn(str(error), as_json=self._session.json)
                refused += code == 0
        return done, refused

    def _next(self, count: int, follow: bool) -> list[Message]:
        least = FOLLOW_SECONDS if follow else self._queue.patience_seconds
        return self._queue.receive_many(count, max(self._wait_seconds, least))

    def _run(self, command: str, message: Message) -> int:
        """The exit code of the command. While it runs, the message is held."""
        timeout = self._queue.settings.timeout
        process = _started(command, message)
        content: bytes | None = self._rendering.value(message) or b""
        try:
            while True:
                try:
                    process.communicate(content, timeout=timeout.total_seconds() / 3)
                    return process.returncode
                except subprocess.TimeoutExpired:
                    content = None  # it continues with the input it has
                    self._keep(message)
        except BaseException:  # the message goes to another consumer: the work on it must have ended by then
            process.terminate()
            process.wait()
            raise

    def _keep(self, message: Message) -> None:
        """Extends the timeout of a message. If that fails, another consumer may get it while it is processed."""
        if not self._extends:
            return
        try:
            message.extend(self._queue.settings.timeout)
        except InvalidInput as error:
            self._extends = False
            warn(str(error), as_json=self._session.json)


class Undeliverable(Exception):
    """A message whose content cannot be passed to a command."""


def _started(command: str, message: Message) -> subprocess.Popen[bytes]:
    key = message.record.key or b""
    if b"\0" in key:
        raise Undeliverable("the key has a NUL character, which the variable MILLSTREAM_KEY cannot contain")
    try:
        return _shell(command, message, key)
    except OSError as error:
        if error.errno != errno.E2BIG or not _starts_without_key(message):
            raise
        raise Undeliverable(
            f"the key has {len(key):,} bytes, more than this system passes to a command in the variable MILLSTREAM_KEY"
        ) from error


def _starts_without_key(message: Message) -> bool:
    """Whether the key is too long, and not the rest of the environment."""
    try:
        return _shell(":", message, b"").communicate() is not None
    except OSError:
        return False


def _shell(command: str, message: Message, key: bytes) -> subprocess.Popen[bytes]:
    record = message.record
    own = {
        "MILLSTREAM_TOPIC": record.topic,
        "MILLSTREAM_PARTITION": str(record.partition),
        "MILLSTREAM_OFFSET": str(record.offset),
        "MILLSTREAM_KEY": os.fsdecode(key),
        "MILLSTREAM_TRIES": str(message.tries),
    }
    return subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env={**os.environ, **own})
