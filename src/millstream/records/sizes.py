"""A size is a whole, non-negative number of bytes: MB is a power of 1000, MiB of 1024."""

from __future__ import annotations

import re
from fractions import Fraction

from millstream.errors import InvalidSetting

_UNITS_BYTES: dict[str, int] = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS_BYTES[f"{_letter}b"] = 1000**_power
    _UNITS_BYTES[f"{_letter}ib"] = 1024**_power
_UNITS_HELP = "units: B, kB, MB, GB, TB, PB (thousands) or KiB, MiB, GiB, TiB, PiB (1024s)"
_SIZE = re.compile(r"\s*([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*([A-Za-z]*)\s*")
_SIZE_BYTES_MAX = 2**63 - 1


def size_bytes(size: str | int, *, what: str = "size") -> int:
    """Bytes from "64 MB", "1GiB", "1.5 KiB" or a number of bytes; `what` names the setting in error messages."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise InvalidSetting(
            f"the {what} must be text or a whole number of bytes, not {type(size).__name__}",
            next_step='write it with its unit: "64 MB"',
        )
    total = Fraction(size) if isinstance(size, int) else _total(size, what)
    if total < 0:
        raise InvalidSetting(f"the {what} is negative: {size}", next_step="give a size of zero or more")
    if total.denominator != 1:
        raise InvalidSetting(f"the {what} '{size}' is not a whole number of bytes", next_step="round it")
    if total > _SIZE_BYTES_MAX:
        raise InvalidSetting(f"the {what} is larger than any file can be", next_step=_UNITS_HELP)
    return int(total)


def _total(text: str, what: str) -> Fraction:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidSetting(
            f"the {what} '{text[:60]}' cannot be read", next_step=f'write a number and a unit: "64 MB"; {_UNITS_HELP}'
        )
    sign, number, unit = match.groups()
    if unit.lower() not in _UNITS_BYTES:
        raise InvalidSetting(f"the {what} '{text[:60]}' has the unknown unit '{unit}'", next_step=_UNITS_HELP)
    total = Fraction(number) * _UNITS_BYTES[unit.lower()]
    return -total if sign == "-" else total
