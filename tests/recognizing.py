"""Statements of MATCH_RECOGNIZE over one row a second, for the transcripts of the language."""

from __future__ import annotations

from typing import Any

from millstream.testing import Add, Watermark
from times import t
from transcripts import play

SCHEMA = "id string, kind string, price int, at timestamp"


def rows(prices: list[int] | str, key: str = "a") -> list[dict[str, Any]]:
    """One row a second: prices, or kinds as single letters."""
    return [
        {
            "id": key,
            "kind": each if isinstance(each, str) else None,
            "price": each if isinstance(each, int) else second,
            "at": t(second),
        }
        for second, each in enumerate(prices)
    ]


def run(text: str, given: list[dict[str, Any]], *, cut: int | None = None) -> list[dict[str, Any]]:
    """All rows of a statement, which do not depend on how its input is divided."""
    parts = [given] if cut is None else [given[:cut], given[cut:]]
    steps: list[Any] = [step for part in parts for step in (Add(part), Watermark(part[-1]["at"]))]
    out = play(lambda stream: stream.match_recognize(text), [*steps, Watermark(None)], schema=SCHEMA, event_time="at")
    return [row for step in out for row in step]


def letters(pattern: str, given: str, more: str = "", **options: Any) -> list[str]:
    """The matches of a pattern over single letters, each as the letters it took. A variable takes its own letter."""
    names = sorted({letter for letter in pattern.upper() if letter in "ABCD"})
    defined = ", ".join(f"{name} as kind = '{name.lower()}'" for name in names)
    text = f"""partition by id order by at measures match_number() as n all rows per match {more}
               pattern ({pattern}) define {defined}"""
    found: dict[int, str] = {}
    for row in run(text, rows(given), **options):
        found[row["n"]] = found.get(row["n"], "") + row["kind"]
    return list(found.values())
