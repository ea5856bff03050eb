"""A random sample of the rows, of a fixed size however many there are; and a filter of the values that there were."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream import bloom_filters
from millstream.errors import InvalidAggregate
from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.aggregates.approximate import Sketched, check_error
from millstream.plan.aggregates.basic import Aggregate, Fed, OfInput, check_number, text_of
from millstream.user_lines import users_line

SIZE_MAX = 100_000
CAPACITY_MAX = 1_000_000_000


@dataclass(frozen=True)
class Sample(OfInput):
    """Each row has a random rank, and those with the highest ranks are the sample: so samples of parts merge."""

    count: int
    weight: str | None

    kind = "sample"
    null_without_rows = False
    forgets = False

    @property
    def arguments(self) -> dict[str, str]:
        return {"input": self.input} | ({} if self.weight is None else {"weight": self.weight})

    def __str__(self) -> str:
        weight = "" if self.weight is None else f", weight={self.weight}"
        return f"sample({self.input}, {self.count}{weight})"

    def check(self, argument: str, given: pa.DataType) -> None:
        if argument == "weight":
            check_number(given)

    def result_type(self, given: pa.DataType | None) -> pa.DataType:
        return pa.list_(given)

    def over(self, rows: Sequence[Fed]) -> list[Any]:
        ranked: list[tuple[float, int]] = []
        for place, row in enumerate(rows):
            weight = row.values.get("weight", 1) if self.weight is not None else 1
            if row.values["input"] is not None and weight is not None and weight > 0:
                ranked.append((random.expovariate(1) / -float(weight), place))
        return [rows[place].values["input"] for _, place in sorted(ranked, reverse=True)[: self.count]]


@dataclass(frozen=True)
class Bloom(Sketched):
    capacity: int
    error: float

    kind = "bloom"

    def _shown(self) -> list[str]:
        return [f"capacity={self.capacity}", f"error={self.error}"]

    def check_value(self, given: pa.DataType) -> None:
        if not (pa.types.is_string(given) or pa.types.is_integer(given)):
            raise TypeError("a string or an integer")

    @property
    def value_type(self) -> pa.DataType:
        return pa.binary()

    def packed(self, values: Mapping[Any, int]) -> bytes:
        return bloom_filters.filter_of(values, self.capacity, self.error)

    def merged(self, parts: Iterable[bytes]) -> bytes:
        return bloom_filters.merged([bloom_filters.filter_of((), self.capacity, self.error), *parts])

    def read(self, sketch: bytes) -> bytes:
        return sketch


# ---------------------------------------------------------------- public functions


def sample(expression: ExpressionLike, count: int, *, weight: ExpressionLike | None = None) -> Aggregate:
    """A random sample of `count` values, each row with the same chance; of fewer rows, all values. Nulls are ignored.

    With `weight`, a row of twice the weight has twice the chance to be chosen first; one of weight 0 has none.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= SIZE_MAX:
        raise InvalidAggregate(
            f"sample takes a whole number from 1 to {SIZE_MAX}, not {count!r}",
            where=users_line(),
            next_step="sample('user', 100)",
        )
    return Sample(text_of(expression, "sample"), count, None if weight is None else text_of(weight, "weight"))


def bloom(
    expression: ExpressionLike, *, capacity: int = 100_000, error: float = 0.01, of_sketches: bool = False
) -> Aggregate:
    """A Bloom filter of the values, as binary; `millstream.bloom_filters.might_contain` asks whether one was there.

    Of up to `capacity` different values, `error` is the fraction of others that it takes for one of them; a value that
    was among them is always found. `of_sketches` merges filters of the same capacity and error.
    """
    if not isinstance(capacity, int) or isinstance(capacity, bool) or not 1 <= capacity <= CAPACITY_MAX:
        raise InvalidAggregate(
            f"bloom takes a capacity from 1 to {CAPACITY_MAX}, not {capacity!r}",
            where=users_line(),
            next_step="bloom('user', capacity=100_000)",
        )
    check_error("bloom", error)
    return Bloom(text_of(expression, "bloom"), False, True, of_sketches, capacity, error)
