"""Default names of steps as tests name them: by kind alone."""

from __future__ import annotations

import re

DEFAULT = re.compile(r"[\w.-]+?\.(\w+)-[0-9a-f]{6}(?=$|[^0-9a-f])")


def by_kind(text: str) -> str:
    """A text in which scores.agg-1f6b0c is agg."""
    return DEFAULT.sub(r"\1", text)
