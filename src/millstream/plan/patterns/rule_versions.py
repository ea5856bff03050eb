"""The versions of rules in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.plan.stored import versions
from millstream.plan.stored.versions import Change, Version


def revised(known: Iterable[Version], changes: Iterable[Change], watermark: int) -> list[Version]:
    """The versions after some changes, given the watermark before them; in order of id and version.

    The content of a version is the id, the version, the filter and the text of a rule.
    """
    made = versions.revised(known, changes, watermark + 1)
    return sorted(made, key=lambda each: (*each.content[:2], each.start, each.content[2] or "", each.content[3]))
