"""An OpenSearch that tests share."""

import pytest

from kafka_jars import KafkaUnavailable
from opensearch_server import OpenSearchServer


@pytest.fixture(scope="session")
def opensearch_server():
    server = OpenSearchServer()
    try:
        server.start()
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()
