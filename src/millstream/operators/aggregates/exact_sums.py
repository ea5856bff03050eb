"""Sums of integers and decimals are exact, however large they grow in between.

A sum is stored as two columns, `sum` and `carry`: it is `sum + carry * base`, and `carry` is 0 as long as the sum fits
its type. Only an emitted sum has to fit; until then, later rows and retractions may bring it back into range, and the
result does not depend on how rows were bundled.

Adding in 128 bits is slower than in 64. So the largest number is checked first: if their count times that fits, they
are added directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Protocol

import polars as pl

WIDE = pl.Int128()
DIGITS_MAX = 38
EXACT = Context(prec=100)
LIMB = 10**19
"""Half of the digits of the largest decimal."""


class Exact(Protocol):
    """How numbers of a type are added without loss: as limbs that are added separately."""

    largest: int
    """The largest sum without a carry."""

    def bound(self, values: pl.Series) -> int:
        """No value is larger than this, whatever its sign."""

    def narrow(self, value: pl.Expr) -> pl.Expr:
        """A value as it is added if the sum is known to fit."""

    def limbs(self, value: pl.Expr) -> list[pl.Expr]:
        """A value split into limbs."""

    def kept_limbs(self, total: pl.Expr, carry: pl.Expr) -> list[pl.Expr]:
        """A stored sum split into limbs."""

    def kept(self, limbs: Sequence[pl.Expr]) -> tuple[pl.Expr, pl.Expr]:
        """The stored form of a sum: its value if it fits, and its carry."""

    def value(self, total: int | Decimal, carry: int) -> int | Decimal:
        """The sum itself."""


class WholeNumbers:
    """The sum is stored modulo 2**64."""

    largest = 2**63 - 1
    _base = 2**64

    def bound(self, values: pl.Series) -> int:
        return 2**31 if values.dtype in (pl.Int8, pl.Int16, pl.Int32) else _largest(values)

    def narrow(self, value: pl.Expr) -> pl.Expr:
        return value.cast(pl.Int64)  # polars would add narrow numbers in their own width

    def limbs(self, value: pl.Expr) -> list[pl.Expr]:
        return [value.cast(WIDE)]

    def kept_limbs(self, total: pl.Expr, carry: pl.Expr) -> list[pl.Expr]:
        return [total.cast(WIDE) + carry.cast(WIDE) * self._base]

    def kept(self, limbs: Sequence[pl.Expr]) -> tuple[pl.Expr, pl.Expr]:
        total = limbs[0].cast(pl.Int64, wrap_numerical=True)
        return total, ((limbs[0] - total.cast(WIDE)) // self._base).cast(pl.Int64)

    def value(self, total: int | Decimal, carry: int) -> int:
        return int(total) + carry * self._base


class Decimals:
    """The sum is stored modulo 10**38 of its smallest unit; it has the sign of its carry, if any."""

    largest = 10**DIGITS_MAX - 1

    def __init__(self, kind: pl.Decimal) -> None:
        self._scale = kind.scale

    def bound(self, values: pl.Series) -> int:
        assert isinstance(values.dtype, pl.Decimal)
        digits = values.dtype.precision or DIGITS_MAX
        return int(10**digits) if digits <= DIGITS_MAX - 10 else _largest(values.to_physical())

    def narrow(self, value: pl.Expr) -> pl.Expr:
        return value

    def limbs(self, value: pl.Expr) -> list[pl.Expr]:
        units = value.to_physical()
        return [units // LIMB, units % LIMB]

    def kept_limbs(self, total: pl.Expr, carry: pl.Expr) -> list[pl.Expr]:
        high, low = self.limbs(total)
        return [high + carry.cast(WIDE) * LIMB, low]

    def kept(self, limbs: Sequence[pl.Expr]) -> tuple[pl.Expr, pl.Expr]:
        high, low = limbs[0] + limbs[1] // LIMB, limbs[1] % LIMB
        carry, units = high // LIMB, high % LIMB * LIMB + low
        is_other_sign = (carry < 0) & (units > 0)
        units = units - pl.when(is_other_sign).then(pl.lit(10**DIGITS_MAX, WIDE)).otherwise(pl.lit(0, WIDE))
        unit = pl.lit(Decimal(1).scaleb(-self._scale), pl.Decimal(DIGITS_MAX, self._scale))
        total = units.cast(pl.Decimal(DIGITS_MAX, 0)) * unit
        return total, (carry + is_other_sign.cast(WIDE)).cast(pl.Int64)

    def value(self, total: int | Decimal, carry: int) -> Decimal:
        units = int(Decimal(total).scaleb(self._scale, EXACT)) + carry * 10**DIGITS_MAX
        return Decimal(units).scaleb(-self._scale, EXACT)


def exact(kind: pl.DataType) -> Exact | None:
    """How numbers of a type are added; None if their sums are not exact."""
    if kind.is_integer():
        return WholeNumbers()
    return Decimals(kind) if isinstance(kind, pl.Decimal) else None


class ExactSum:
    """The expressions of a sum over the rows of a frame, or over several stored sums."""

    def __init__(self, numbers: Exact, total: str, carry: str, weight: str | None) -> None:
        """`total` and `carry` are the stored columns; `weight` is that of rows that may be retracted."""
        self._numbers = numbers
        self._total, self._carry = total, carry
        self._weight = weight

    def from_rows(self, value: str, rows: pl.DataFrame, add: Callable[[pl.Expr], pl.Expr]) -> tuple[pl.Expr, pl.Expr]:
        """The sum of a column, computed with `add`."""
        numbers, column = self._numbers, pl.col(value)
        largest = numbers.bound(rows[value]) * (_largest(rows[self._weight]) if self._weight else 1)
        if len(rows) * largest <= numbers.largest:
            return add(self._weighted(numbers.narrow(column))), pl.lit(0, pl.Int64)
        return numbers.kept([add(self._weighted(limb)) for limb in numbers.limbs(column)])

    def merged(self, parts: pl.DataFrame, add: Callable[[pl.Expr], pl.Expr]) -> tuple[pl.Expr, pl.Expr]:
        """The sum of sums."""
        numbers, total, carry = self._numbers, pl.col(self._total), pl.col(self._carry)
        held = parts[self._total]
        largest = _largest(held if held.dtype.is_integer() else held.to_physical())
        if len(parts) * largest <= numbers.largest and not _largest(parts[self._carry]):
            return add(total), pl.lit(0, pl.Int64)
        return numbers.kept([add(limb) for limb in numbers.kept_limbs(total, carry)])

    def _weighted(self, value: pl.Expr) -> pl.Expr:
        return value * pl.col(self._weight) if self._weight else value

    def too_large(self, sums: pl.DataFrame) -> pl.Series | None:
        """Which sums do not fit; None if all do."""
        overflows = (pl.col(self._carry) != 0).fill_null(False)
        return sums.select(overflows).to_series() if sums.select(overflows.any()).item() else None

    def value(self, sums: pl.DataFrame) -> int | Decimal:
        """The first of some sums."""
        return self._numbers.value(sums[self._total][0], sums[self._carry][0])


def _largest(values: pl.Series) -> int:
    smallest, largest = values.min(), values.max()
    return max(abs(int(smallest)), abs(int(largest))) if isinstance(smallest, int) and isinstance(largest, int) else 0
