"""The built files of the pages, read once: a request names one of them or gets nothing, so no path leads elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
OPEN = ("login.html", "login.js", "login.css")
"""What a browser gets before it has logged in."""


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    media_type: str
    tag: str


def static_files() -> dict[str, StaticFile]:
    """By name."""
    found = {}
    for entry in resources.files("millstream.web_console").joinpath("static").iterdir():
        kind = TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found
