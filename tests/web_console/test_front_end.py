"""The built pages are those of their sources, and these are typed and linted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from build_console import BUILT, HASHES, LICENCES, SOURCES, hashes, npm


def test_the_built_files_are_those_of_the_sources(tmp_path: Path) -> None:
    """Goal: neither sources that were not built again nor built files that were edited by hand are shipped."""
    written = json.loads((BUILT / HASHES).read_text())
    assert written == hashes(), "build them: python tools/build_console.py"
    edited = tmp_path / "static"
    shutil.copytree(BUILT, edited)
    assert hashes(edited) == written
    (edited / "index.js").write_text((BUILT / "index.js").read_text() + " ")
    assert hashes(edited)["built"] != written["built"]


def test_the_sources_are_typed_and_linted() -> None:
    if shutil.which("npm") is None:
        pytest.skip("Node is missing")
    if not (SOURCES / "node_modules").is_dir():
        pytest.skip("the packages of the front end are not installed: make test installs them")
    npm("run", "check")


def test_no_address_outside_the_machine() -> None:
    for path in (each for each in BUILT.iterdir() if each.name != LICENCES):
        found = path.read_text().replace("http://www.w3.org/", "")
        assert "http://" not in found, path
        assert "https://" not in found, path
