"""A copy in Redis: a hash, whose fields are the keys. Rows and mark are changed in one transaction of Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.copies.ports import Changes, Mark
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.secrets import shown_address

MARKS = ":millstream"
NEXT = ":next"


def client(url: str) -> Any:
    try:
        import redis
    except ImportError as error:
        raise InvalidInput(
            "a copy in Redis needs the package redis", next_step="pip install 'millstream[redis]'"
        ) from error
    try:
        return redis.Redis.from_url(url)
    except ValueError as error:
        raise InvalidInput(
            f"'{shown_address(url)}' is not an address of Redis: {error}", next_step="write redis://host:6379/0"
        ) from None


class RedisStore:
    def __init__(self, url: str, name: str, replaces: str | None = None) -> None:
        """`replaces` is the name of the copy that this one takes the place of."""
        self._url = url
        self._name = name
        self._replaces = replaces
        self._redis = client(url)

    @property
    def where(self) -> str:
        return f"'{self._replaces or self._name}' in {shown_address(self._url)}"

    def mark(self, writer: str) -> Mark | None:
        with self._errors():
            return _read(self._redis.hget(self._name + MARKS, writer))

    def writers(self) -> list[str]:
        with self._errors():
            return sorted(name.decode() for name in self._redis.hkeys(self._name + MARKS))

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        import redis

        marks = self._name + MARKS
        with self._errors(), self._redis.pipeline(transaction=True) as pipe:
            pipe.watch(marks)  # if another process changes or replaces them, nothing is executed
            if _read(pipe.hget(marks, writer)) != before:
                return False
            pipe.multi()
            if clear:
                pipe.delete(self._name)
            if rows := {key: row for key, row in changes.items() if row is not None}:
                pipe.hset(self._name, mapping=rows)
            if gone := [key for key, row in changes.items() if row is None]:
                pipe.hdel(self._name, *gone)
            pipe.hset(marks, writer, json.dumps(mark))
            try:
                pipe.execute()
            except redis.WatchError:
                return False
        return True

    def holds(self, key: str, row: bytes) -> bool:
        with self._errors():
            return bool(self._redis.hget(self._name, key) == row)

    def empty(self) -> None:
        with self._errors():
            self._redis.delete(self._name, self._name + MARKS)

    def replacement(self) -> RedisStore:
        made = RedisStore(self._url, self._name + NEXT, self._name)
        made.empty()  # of a rebuild that was killed
        return made

    def switch(self) -> None:
        assert self._replaces is not None
        with self._errors(), self._redis.pipeline(transaction=True) as pipe:
            there = {suffix: self._redis.exists(self._name + suffix) for suffix in ("", MARKS)}
            for suffix, exists in there.items():
                if exists:
                    pipe.rename(self._name + suffix, self._replaces + suffix)
                else:
                    pipe.delete(self._replaces + suffix)
            pipe.execute()
        self._name, self._replaces = self._replaces, None

    def close(self) -> None:
        self._redis.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import redis

        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError) as error:
            raise SinkUnavailable(
                f"Redis cannot be reached: {error}", where=self.where, next_step="check that it is up"
            ) from None
        except redis.RedisError as error:
            raise SinkFailed(
                f"Redis refuses the copy: {error}",
                where=self.where,
                next_step="check what is stored under this name, and the rights of the user",
            ) from None


def _read(content: bytes | None) -> Mark | None:
    made: Mark | None = None if content is None else json.loads(content)
    return made
