"""Rows from a user's generator as a source: each row is spooled with the position after it, from which it resumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa

from millstream import terminal
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Reading
from millstream.connectors.source import Offsets, Slab, Source
from millstream.connectors.spooled import SpooledSource
from millstream.errors import ClosedError, InvalidRecord
from millstream.log import EmbeddedLog, Producer
from millstream.private_files import make_folders
from millstream.records import Schema

TOPIC = "rows"
POSITION = "_position"
TOGETHER_MAX = 1000
AHEAD_MAX = 100_000
"""How many rows may wait in the spool: the generator is not asked for more until the job has read some."""
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 30.0
LOOK_SECONDS = 0.05
logger = terminal.logger(__name__)
Generator = Callable[[Any], Iterable[tuple[Any, dict[str, Any]]]]


@dataclass(frozen=True)
class Generate(Connector):
    function: Generator
    can_read: ClassVar[bool] = True
    can_peek: ClassVar[bool] = False
    can_replay: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"generate {getattr(self.function, '__name__', 'function').strip('<>')}"

    def open_source(self, reading: Reading) -> Source:
        make_folders(reading.folder)
        return GeneratedSource(self, reading.schema, reading.folder)

    def __str__(self) -> str:
        return f"generate({getattr(self.function, '__name__', type(self.function).__name__)})"


def generate(function: Generator) -> Generate:
    """A source whose rows a Python generator makes: `function(position)` yields `(position, row)`, one after the other.

    It is called with None first, and after a restart with the position of its last stored row, to continue after it. A
    position is anything that JSON can hold. If the function raises, it is called again after a while.
    """
    if not callable(function):
        raise arguments.refused(
            f"generate takes a function, not {function!r}",
            "a function that yields (position, row), as a generator does",
        )
    return Generate(function)


class GeneratedSource(SpooledSource):
    def __init__(self, endpoint: Generate, schema: Schema, folder: Path) -> None:
        fields = [*schema.arrow, pa.field(POSITION, pa.string())]
        super().__init__(TOPIC, Schema.from_arrow(pa.schema(fields)), folder)
        self.endpoint = endpoint
        self.schema = schema
        self._started = 0

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        self._started = sum(start.values())
        return super().limited(start, limit_rows)

    def _receiving(self) -> Filler:
        return Filler(self.endpoint, self._log, lambda: self._started)

    def _checked(self, slab: Slab) -> Slab:
        return Slab(slab.partition, slab.rows.select(self.schema.names), slab.offsets, slab.dead)


class Filler:
    """A thread that runs the generator. `read` returns how many rows the job has read."""

    def __init__(self, endpoint: Generate, log: EmbeddedLog, read: Callable[[], int]) -> None:
        self._endpoint = endpoint
        self._log = log
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-generate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while not self._stop.is_set():
            try:
                with self._log.producer(acks="all") as producer:
                    if self._fill(producer):
                        return
            except (ClosedError, InvalidRecord) as error:
                if isinstance(error, InvalidRecord):
                    logger.error("%s ends: a row does not fit its columns: %s", self._endpoint, error)
                return
            except Exception as error:  # of the user's function, or of the disk
                logger.warning("%s failed: %r; it is called again in %.1f s", self._endpoint, error, pause)
            self._stop.wait(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _fill(self, producer: Producer) -> bool:
        """Whether the generator has ended, or this was stopped."""
        stored = self._end()
        for number, (position, row) in enumerate(self._endpoint.function(self._position()), 1):
            producer.send(TOPIC, {**row, POSITION: orjson.dumps(position).decode()})
            if number % TOGETHER_MAX == 0:
                producer.flush()
            while stored + number - self._read() >= AHEAD_MAX and not self._stop.is_set():
                self._stop.wait(LOOK_SECONDS)
            if self._stop.is_set():
                break
        producer.flush()
        return True

    def _end(self) -> int:
        return self._log.topic(TOPIC).partition(0).end_offset()

    def _position(self) -> Any:
        """That of the last stored row."""
        end = self._end()
        if not end:
            return None
        with self._log.consumer(TOPIC, start={0: end - 1}) as consumer:
            (last,) = consumer.poll(10)
        return orjson.loads(last.value[POSITION])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
