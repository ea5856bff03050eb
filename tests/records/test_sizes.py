"""Goal: sizes are whole bytes, and MB and MiB are different units."""

import pytest

from millstream.errors import InvalidSetting
from millstream.records import size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (5, 5),
        ("5", 5),
        ("5 B", 5),
        ("5 bytes", 5),
        ("64 MB", 64_000_000),
        ("64 MiB", 64 * 2**20),
        ("1GiB", 2**30),
        ("1.5 KiB", 1536),
        ("0.5kb", 500),
        (" 2 tb ", 2 * 10**12),
    ],
)
def test_sizes(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (-1, "negative"),
        ("-1 MB", "negative"),
        ("0.3 B", "whole number of bytes"),
        ("5 XB", "unknown unit 'XB'"),
        ("5 XB", "MiB"),
        ("", "cannot be read"),
        ("MB", "cannot be read"),
        ("1 2 MB", "cannot be read"),
        (1.5, "not float"),
        (True, "not bool"),
        ("1000000 PB", "larger"),
    ],
)
def test_invalid_sizes_are_refused(text, expected):
    with pytest.raises(InvalidSetting) as refusal:
        size_bytes(text, what="segment size")
    assert expected in str(refusal.value)
    assert "segment size" in str(refusal.value)
