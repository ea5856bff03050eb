"""Which tests run once more after a failure."""

from __future__ import annotations

import json

from rerun_failed import failed_tests


def test_the_group_that_xdist_appends_is_removed() -> None:
    recorded = {
        "tests/a.py::test_x[y@z]@spark": True,
        "tests/a.py::test_w@kafka": True,
        "tests/a.py::test_v[b@c]": True,
    }
    assert failed_tests(json.dumps(recorded)) == [
        "tests/a.py::test_v[b@c]",
        "tests/a.py::test_w",
        "tests/a.py::test_x[y@z]",
    ]


def test_a_module_that_could_not_be_collected_is_kept() -> None:
    assert failed_tests(json.dumps({"tests/a.py": True})) == ["tests/a.py"]
