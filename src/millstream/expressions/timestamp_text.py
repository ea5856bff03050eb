"""Text as a timestamp, as Spark reads it: parts may be missing or have one digit, and a zone may follow."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

BLANKS = "".join(map(chr, (*range(33), 127)))
DATE = r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
TIME = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?"
TEXT = re.compile(rf"\+?{DATE}(?:[ T]{TIME})?)?)?", re.ASCII | re.DOTALL)
OFFSET = re.compile(r"([+-])(?:(\d{1,2})|(\d{2}):?(\d{2})|(\d{2}):(\d{2}):(\d{2})|(\d{2})(\d{2})(\d{2}))", re.ASCII)
LARGEST_OFFSET = timedelta(hours=18)
PREFIX = re.compile(r"(?:UTC|GMT|UT)(?=[+-])")
ONE_DIGIT_HOUR, ONE_DIGIT_MINUTE = re.compile(r"([+-])(\d):", re.ASCII), re.compile(r"([+-]\d\d):(\d)$", re.ASCII)
SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Java's short names of zones."""
NOT_IN_JAVA = {"Factory", "localtime", "posixrules", "ROC"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(text: str) -> int | None:
    """Microseconds since 1970; None if the text is not a timestamp with a date between the years 1 and 9999."""
    found = TEXT.fullmatch(text.strip(BLANKS))
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    micros = int((fraction or "")[:6].ljust(6, "0"))
    parts = (int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0), micros)
    try:
        made = datetime(*parts, tzinfo=UTC if zone is None else zone_of(zone.strip(BLANKS)))
        # A time that clocks skip is read with the offset before the change, one that comes twice as the first.
        return (made - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError, ZoneInfoNotFoundError):
        return None


@lru_cache(maxsize=1000)
def zone_of(name: str) -> tzinfo:
    """A zone as Java names it; a ValueError if there is none."""
    name = ONE_DIGIT_HOUR.sub(r"\g<1>0\2:", name, count=1)
    name = ONE_DIGIT_MINUTE.sub(r"\1:0\2", name)
    name = SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = OFFSET.fullmatch(PREFIX.sub("", name, count=1))
    if found is None:
        if name not in available_timezones() or name in NOT_IN_JAVA:
            raise ValueError(f"there is no time zone '{name}'")
        return ZoneInfo(name)
    sign, *digits = found.groups()
    hours, minutes, seconds = ([int(each) for each in digits if each is not None] + [0, 0])[:3]
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > LARGEST_OFFSET:
        raise ValueError(f"there is no offset {name}")
    return timezone(-offset if sign == "-" else offset)
