"""A partitioner chooses the partition of each record in a batch; it is called once per batch, not per record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidSetting, UnknownPartition
from millstream.log.murmur2 import murmur2_all

OwnPartitioner = Callable[[bytes | None, int], int]


class Partitioner(Protocol):
    def __call__(self, keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]: ...


class KeyHash:
    """By the key's hash, as in Kafka; records without a key go to one partition per batch, in turn."""

    def __call__(self, keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
        chosen = np.full(len(keys), random.randrange(partitions), np.int64)
        if keys.null_count < len(keys) and partitions > 1:
            keyed = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
            hashes = murmur2_all(keys.drop_null())
            chosen[keyed] = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
        elif partitions == 1:
            chosen[:] = 0
        return chosen


class RoundRobin:
    """One record to each partition in turn, ignoring keys."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
        chosen = (self._next + np.arange(len(keys), dtype=np.int64)) % partitions
        self._next = (self._next + len(keys)) % partitions
        return chosen


class Sticky:
    """A whole batch to one partition, the next batch to another, ignoring keys."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
        others = [partition for partition in range(partitions) if partition != self._last]
        self._last = random.choice(others or [0])
        return np.full(len(keys), self._last, np.int64)


class UserPartitioner:
    """The user's function of key and number of partitions."""

    def __init__(self, choose: OwnPartitioner) -> None:
        self._choose = choose

    def __call__(self, keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
        chosen = [self._choose(key, partitions) for key in keys.to_pylist()]
        for choice in chosen:
            if not isinstance(choice, int | np.integer) or isinstance(choice, bool):
                raise UnknownPartition(f"the partitioner returned {choice!r}; a partition is a whole number")
        return np.array(chosen, np.int64)


NAMED: dict[str, Callable[[], Partitioner]] = {"key": KeyHash, "round_robin": RoundRobin, "sticky": Sticky}


def partitioner(choice: str | OwnPartitioner) -> Partitioner:
    if callable(choice):
        return UserPartitioner(choice)
    if choice not in NAMED:
        raise InvalidSetting(
            f"there is no partitioner '{choice}'",
            next_step=f"choose one of {names(NAMED)}, or give a function of key and number of partitions",
        )
    return NAMED[choice]()


def names(choices: Iterable[str]) -> str:
    return ", ".join(f"'{choice}'" for choice in choices)
