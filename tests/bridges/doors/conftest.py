from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.testing.connectors import DoorSuite


@pytest.fixture(autouse=True)
def fewer_kills_in_a_short_run(
    request: pytest.FixtureRequest, rounds: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = getattr(request.cls, "kills", 0)
    if kills > DoorSuite.kills:
        monkeypatch.setattr(request.cls, "kills", rounds(kills, DoorSuite.kills))
