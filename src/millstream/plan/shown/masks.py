"""Columns of a flow file whose values the console hides."""

from __future__ import annotations

import re
from collections.abc import Iterable

from millstream.errors import InvalidInput
from millstream.user_lines import AtUsersLine

PATTERN = re.compile(r"[^\W\d][\w.*-]*|\*[\w.*-]*[\w][\w.*-]*")
_masked: dict[str, None] = {}


def mask(*columns: str) -> None:
    """Hides the values of these columns wherever the console shows records, once a job of this file has started.

    A name hides every column and every field of that name, in any topic, table or step; case does not matter, and `*`
    stands for any characters: `ms.mask("email", "card_*")`.
    """
    with AtUsersLine():
        if not columns:
            raise InvalidInput("no column is named", next_step='ms.mask("email", "card_*")')
        _masked.update(dict.fromkeys(checked_masks(columns)))


def checked_masks(columns: Iterable[str]) -> tuple[str, ...]:
    """The names and patterns of columns; anything else is refused."""
    found = tuple(columns)
    for each in found:
        if not isinstance(each, str) or not PATTERN.fullmatch(each):
            raise InvalidInput(
                f"{each!r} is not the name of a column", next_step="use a name such as email, or a pattern: card_*"
            )
    return found


def masked_columns() -> list[str]:
    """Those that were named in this process."""
    return list(_masked)
