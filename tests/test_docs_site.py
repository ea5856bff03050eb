"""The documentation as a whole: links lead somewhere, pages can be found, and every public name is documented."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

import millstream
import reference
from millstream.cli.app import app
from millstream.expressions.functions import FUNCTIONS
from millstream.plan.run_settings import ReplaySettings

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = pytest.mark.xdist_group("site")  # the reference is generated once, in one worker
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+?)(?: \{#(\S+)\})?$", re.MULTILINE)


@cache
def generated() -> dict[str, str]:
    return reference.pages()


def text_of(path: Path) -> str | None:
    """A page, also one that exists only on the site; None for a picture."""
    made = generated().get(path.relative_to(ROOT / "docs").as_posix()) if path.is_relative_to(ROOT / "docs") else None
    return made or (path.read_text() if path.is_file() and path.suffix != ".png" else None)


def anchors(text: str) -> set[str]:
    """As the site and GitHub derive them from headings; and those that are written out."""
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for title, given in HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = unicodedata.normalize("NFKD", title.replace("`", "")).encode("ascii", "ignore").decode()
        found.add(given or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def broken_links(page: Path, text: str) -> list[str]:
    wrong = []
    for link in LINK.findall(CODE.sub("", text)):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = (page.parent / target).resolve() if target else page
        found = text if not target else text_of(place)
        if found is None and not place.exists():
            wrong.append(f"{page.name} links to {link}, which does not exist")
        elif anchor and found is not None and anchor not in anchors(found):
            wrong.append(f"{page.name} links to {link}, and there is no such heading")
    return wrong


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not broken_links(page, page.read_text())


def test_links_of_generated_pages_lead_somewhere() -> None:
    wrong = [each for name, text in generated().items() for each in broken_links(ROOT / "docs" / name, text)]
    assert not wrong


@pytest.mark.parametrize("link", ["nowhere.md", "running.md#nowhere", "#nowhere", "reference/nowhere.md"])
def test_a_broken_link_is_found(link: str) -> None:
    """Goal: the tests above can fail."""
    page = ROOT / "docs" / "running.md"
    assert broken_links(page, f"{page.read_text()}\n[link]({link})\n")


def test_every_public_name_is_in_the_reference() -> None:
    found = anchors(generated()["reference/python.md"])
    missing = [name for name in millstream.__all__ if f"ms.{name}" not in found]
    assert not missing, f"tools/reference.py documents no {', '.join(missing)}"


def test_every_aggregate_function_setting_and_command_is_in_the_reference() -> None:
    pages = generated()
    assert all(f"| `{name}` |" in pages["reference/expressions.md"] for name in FUNCTIONS)
    settings = [f"| `{name}`" in pages["reference/settings.md"] for name in ReplaySettings.__dataclass_fields__]
    assert all(settings)
    commands = [" ".join(words) for words, _ in reference.commands(typer.main.get_command(app), [])]
    assert {"init", "run", "topics create"} <= set(commands)
    assert all(f"# {name} {{#" in pages["reference/commands.md"] for name in commands)
    assert "### ms.sum {#ms.sum}" in pages["reference/aggregates.md"]


def test_every_variable_of_the_environment_is_in_the_reference() -> None:
    """Those that users set: what is read with a default or asked of the environment in the package."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"\$(MILLSTREAM_[A-Z_]+)", source)) | set(
        re.findall(r'_VARIABLE = "(MILLSTREAM_\w+)"', source)
    )
    assert "MILLSTREAM_BROKER" in read
    assert read <= set(reference.VARIABLES)


def test_every_page_is_in_the_navigation_and_on_the_start_page() -> None:
    nav = set(re.findall(r"[\w/]+\.md", str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | set(generated())
    assert pages <= nav
    assert nav - pages == {"CHANGELOG.md", "CONTRIBUTING.md"}
    start = (ROOT / "docs" / "index.md").read_text()
    assert {page for page in pages if f"({page})" not in start} == {"index.md"}


def test_the_glossary_has_every_term_once() -> None:
    terms = re.findall(
        r'^\| <a id="([^"]+)"></a>([^|]+?) \|', (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    assert len(terms) > 50
    twice = [
        name for kind in (0, 1) for name, count in Counter(term[kind].lower() for term in terms).items() if count > 1
    ]
    assert not twice


@pytest.mark.more
@pytest.mark.own_processes
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ms.Flow.run" in (tmp_path / "reference" / "python.html").read_text()
    assert (tmp_path / "search" / "search_index.js").is_file()
