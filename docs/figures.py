"""Draws the figures of the pages again. The code on a page draws them, so no picture is older than its text.

usage: python docs/figures.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FIGURES = DOCS / "figures"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def figures(page: Path) -> dict[str, str]:
    """What a page's code draws, by file name."""
    names: dict[str, object] = {"__name__": "__main__"}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in PYTHON.findall(page.read_text(encoding="utf-8")):
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block, str(page), "exec"), names)
        finally:
            os.chdir(here)
        return {found.name: found.read_text(encoding="utf-8") for found in sorted(Path(folder).glob("*.svg"))}


def pages() -> list[Path]:
    """The pages that draw."""
    return [page for page in sorted(DOCS.glob("*.md")) if "draw=" in page.read_text(encoding="utf-8")]


def all_figures() -> dict[str, str]:
    return {name: text for page in pages() for name, text in figures(page).items()}


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    drawn = all_figures()
    for name, text in drawn.items():
        (FIGURES / name).write_text(text, encoding="utf-8")
    for stale in set(FIGURES.glob("*.svg")) - {FIGURES / name for name in drawn}:
        stale.unlink()
    print(f"{len(drawn)} figures in {FIGURES}")


if __name__ == "__main__":
    main()
