"""The position of a reader in a topic, as text: the next offset of every partition, such as `0:12,1:7`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.errors import InvalidInput
from millstream.log import Broker

PART = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")
ENDS = ("earliest", "latest")


def position_text(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offsets[partition]}" for partition in sorted(offsets))


def position_of(log: Broker, topic: str, text: str) -> dict[int, int]:
    """The offsets of a position, which may also be `earliest` or `latest`; new partitions are read from the start."""
    parts = {part.number: part for part in log.topic(topic).partitions()}
    if text in ENDS:
        read = "start_offset" if text == "earliest" else "stable_offset"
        return {number: getattr(part, read)() for number, part in parts.items()}
    found = [PART.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise InvalidInput(
            f"{text[:50]!r} is not a position", next_step="send one that was returned, 'earliest' or 'latest'"
        )
    given = {int(part[1]): int(part[2]) for part in found if part is not None}
    for number, offset in given.items():
        if number not in parts:
            raise InvalidInput(f"the topic has no partition {number}", next_step=f"it has {len(parts)}")
        if offset > (end := parts[number].end_offset()):
            raise InvalidInput(
                f"partition {number} ends at offset {end}, before {offset}", next_step="read the topic from 'earliest'"
            )
    return {number: given.get(number, 0) for number in parts}
