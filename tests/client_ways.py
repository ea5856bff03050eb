"""The two ways in which records come from Kafka: as columns from librdkafka, and as objects of confluent-kafka."""

from __future__ import annotations

import pytest

from millstream.log.kafka import handle


@pytest.fixture(params=["columns", pytest.param("objects", marks=pytest.mark.more)])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "objects":
        monkeypatch.setattr(handle, "library", lambda: None)
    return str(request.param)
