"""Which worker runs what: with several workers, one has all tests of Spark, so that there is one session, except for
those that only start processes of their own. A module of transcripts names in `ON_SPARK` the tests that are played
there each time; on the other runners all of them are. What the long runs do is in soak.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from brokers import running
from kafka_cluster import KafkaCluster

pytest_plugins = ["soak"]
settings.register_profile(
    "default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("default")

HERE = Path(__file__).parent
WITH_SPARK = [HERE / "spark", HERE / "test_docs.py"]


@pytest.hookimpl(tryfirst=True)  # before the workers are told their groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if item.get_closest_marker("own_processes"):
            continue
        if "spark" in [value for value in given if isinstance(value, str)] or any(
            place in (item.path, *item.path.parents) for place in WITH_SPARK
        ):
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_spark = getattr(metafunc.module, "ON_SPARK", None)
    if on_spark is not None:
        marks = [] if metafunc.function.__name__ in on_spark else [pytest.mark.soak]
        runners = ["reference", "local", pytest.param("spark", marks=marks)]
        metafunc.parametrize("every_runner", runners, indirect=True)


@pytest.fixture(autouse=True)
def every_runner(request: pytest.FixtureRequest) -> None:
    """Tells a module of transcripts on what to play."""
    if hasattr(request, "param"):
        request.module.runner["on"] = request.param


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    yield from running(1)


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Who kills one of them restarts it."""
    yield from running(3)
