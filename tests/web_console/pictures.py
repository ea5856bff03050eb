"""Screenshots of pages for the documentation, kept where MILLSTREAM_PICTURES names a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = "MILLSTREAM_PICTURES"


def picture(page: Page, name: str) -> None:
    """Light and dark, as a desktop and a phone show them."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    before = page.viewport_size
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=Path(folder) / f"{name}-{scheme}.png", animations="disabled")
    page.set_viewport_size({"width": 390, "height": 800})
    page.screenshot(path=Path(folder) / f"{name}-phone.png", animations="disabled")
    page.emulate_media(color_scheme="light")
    if before is not None:
        page.set_viewport_size(before)
