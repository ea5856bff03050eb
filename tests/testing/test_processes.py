"""Processes that tests kill are forked from a server that may have been started long before."""

from __future__ import annotations

import os

import pytest

from millstream.testing.connectors.processes import Child, Ready


def _end(ready: Ready, variable: str) -> None:
    """With a code that says whether the variable is there."""
    os._exit(7 if os.environ.get(variable) == "set later" else 8)


@pytest.mark.more
def test_a_process_has_the_environment_that_its_test_has(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MILLSTREAM_TEST_OF_PROCESSES"
    assert Child(_end, name).wait_until_dead() == 8  # now the server runs
    monkeypatch.setenv(name, "set later")
    assert Child(_end, name).wait_until_dead() == 7
