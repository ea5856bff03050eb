"""The figures of the pages are drawn by the pages: none is older than the code beside it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load()


LONG = ("notebooks.md", "triggers.md", "four_questions.md")


def of_its_kind(page: Path) -> object:
    """Some pages take long."""
    return pytest.param(page, id=page.name, marks=[pytest.mark.more] if page.name in LONG else [])


@pytest.mark.parametrize("page", [of_its_kind(page) for page in script.pages()])
def test_the_figures_of_a_page_are_up_to_date(page: Path) -> None:
    drawn = script.figures(page)
    shown = re.findall(r"\(figures/([^)]+\.svg)\)", page.read_text())
    assert sorted(drawn) == sorted(shown), "a page shows what it draws"
    for name, text in drawn.items():
        assert (DOCS / "figures" / name).read_text(encoding="utf-8") == text, f"{name}: run python docs/figures.py"


def test_no_figure_is_left_over() -> None:
    shown = {name for page in DOCS.glob("*.md") for name in re.findall(r"\(figures/([^)]+\.svg)\)", page.read_text())}
    assert {path.name for path in (DOCS / "figures").glob("*.svg")} == shown
