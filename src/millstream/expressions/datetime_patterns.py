"""Date and time patterns: the letters of Spark that mean exactly the same in DuckDB; others are rejected."""

from __future__ import annotations

import re

from millstream.expressions.lowered import Refusal

# Spark's letters → DuckDB's code, and a regular expression of the text, or None if it can be formatted but not parsed.
LETTERS: dict[str, tuple[str, str | None]] = {
    "yyyy": ("%Y", "[0-9]{4}"),
    "yy": ("%y", None),
    "MM": ("%m", "[0-9]{2}"),
    "M": ("%-m", None),
    "MMM": ("%b", None),
    "MMMM": ("%B", None),
    "dd": ("%d", "[0-9]{2}"),
    "d": ("%-d", None),
    "DDD": ("%j", None),
    "HH": ("%H", "[0-9]{2}"),
    "H": ("%-H", None),
    "hh": ("%I", None),
    "h": ("%-I", None),
    "mm": ("%M", "[0-9]{2}"),
    "m": ("%-M", None),
    "ss": ("%S", "[0-9]{2}"),
    "s": ("%-S", None),
    "SSS": ("%g", "[0-9]{3}"),
    "SSSSSS": ("%f", "[0-9]{6}"),
    "E": ("%a", None),
    "EEE": ("%a", None),
    "EEEE": ("%A", None),
    "a": ("%p", None),
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def for_duckdb(pattern: str, *, reading: bool = False) -> tuple[str, str]:
    """DuckDB's pattern, and a regular expression for the text it parses."""
    made, expected = "", ""
    for token in _TOKEN.finditer(pattern):
        found = token.group(0)
        if token.group(2):
            code, form = LETTERS.get(found, (None, None))
            if code is None or (reading and form is None):
                choices = [letters for letters, (_, form) in LETTERS.items() if form or not reading]
                raise Refusal(
                    f"'{found}' in the pattern '{pattern}' is not supported in a flow",
                    f"supported letters: {', '.join(choices)}; quote text with '…'",
                )
            made += code
            expected += form or ""
        else:
            plain = (token.group(1) or "'").replace("''", "'") if found.startswith("'") else found
            made += plain.replace("%", "%%")
            expected += re.escape(plain)
    return made, expected
