"""What the site has besides the pages in docs/: the generated reference, and files of the repository they link to."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from reference import pages  # MkDocs puts the folder of a hook on the path while it loads it

ROOT = Path(__file__).parent.parent

OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
"""A link from a page in docs/ to a file beside that folder."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for path in linked_files():
        content = (ROOT / path).read_bytes()
        if path.endswith(".md"):  # its own links start at the repository's root, as the site does
            content = content.replace(b"](docs/", b"](")
        files.append(File.generated(config, path, content=content))
    return files


def linked_files() -> list[str]:
    found = {path for page in (ROOT / "docs").glob("*.md") for path in OUTSIDE.findall(page.read_text())}
    return sorted(found)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the files that lie outside docs/ where the site has them."""
    return OUTSIDE.sub(r"](\1", markdown) if "/" not in page.file.src_uri else markdown
