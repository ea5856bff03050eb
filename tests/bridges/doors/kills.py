"""The suites with a hundred kills instead of five, for the long runs."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.testing.connectors import DoorSuite, SinkSuite, UnconnectedSinkSuite

KILLS = 100


def killed_often(suite: type[DoorSuite] | type[SinkSuite] | type[UnconnectedSinkSuite]) -> Any:
    """A suite of this module without its other tests."""
    others = {name: None for name in dir(suite) if name.startswith("test_") and name != "test_killed_at_every_step"}
    members = {"kills": KILLS, "__module__": suite.__module__, **others}
    return pytest.mark.soak(type(f"{suite.__name__}KilledOften", (suite,), members))
