"""The clock in an expression: `current_timestamp()` is the processing time of the batch, the same if it is repeated."""

from __future__ import annotations

from collections.abc import Collection

NOW = "__now"
"""The column that holds the clock while an expression is evaluated."""
CLOCKS = {
    "current_timestamp": NOW,
    "now": NOW,
    "current_date": f"cast({NOW} as date)",
    "curdate": f"cast({NOW} as date)",
    "localtimestamp": f"cast({NOW} as timestamp_ntz)",
    "unix_timestamp": f"unix_timestamp({NOW})",
    "current_timezone": "'UTC'",
}
"""Functions of the clock, and what stands in their place: called without arguments."""
WITHOUT_BRACKETS = ("current_timestamp", "current_date", "localtimestamp")


def with_clock_column(text: str, columns: Collection[str] = ()) -> str:
    """Spark SQL with the column of the clock in place of its functions; the same text if it uses none.

    Some may be written without brackets, unless a column has that name.
    """
    if not any(name in text.lower() for name in CLOCKS):
        return text
    from millstream.expressions.spark_sql import SparkGrammar

    tokens = SparkGrammar().tokenize(text)
    made, end = "", 0
    for place, token in enumerate(tokens):
        name = token.text.lower()
        following = [each.text for each in tokens[place + 1 : place + 3]]
        is_call = following == ["(", ")"]
        if name not in CLOCKS or text[token.start] in "`'\"" or (place and tokens[place - 1].text == "."):
            continue
        if not is_call and (name not in WITHOUT_BRACKETS or name in columns or following[:1] == ["("]):
            continue
        made += text[end : token.start] + CLOCKS[name]
        end = (tokens[place + 2] if is_call else token).end + 1
    return made + text[end:]
