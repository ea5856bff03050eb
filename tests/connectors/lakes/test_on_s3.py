"""Tables of a lake in an object store: a real server that speaks S3."""

import pytest

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import SinkFailed, SinkUnavailable

from ..support import LAKES, SCORES, table, weights

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "c", "score": 3})


def place(kind, s3, tmp_path, bucket="tests", **more):
    if kind == "delta":
        return ms.delta_table(f"s3://{bucket}/{tmp_path.name}", options=s3.settings, **more)
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket}/{tmp_path.name}",
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.settings["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": s3.settings["AWS_SECRET_ACCESS_KEY"],
        "s3.region": s3.settings["AWS_REGION"],
    }
    return ms.iceberg("tests", "games.scores", settings=settings, **more)


def opened(endpoint, tmp_path):
    return open_sink(endpoint, SCORES, job="job", step="out", broker=tmp_path / "log", folder=tmp_path / "job")


@pytest.mark.more
@pytest.mark.parametrize("kind", LAKES)
@pytest.mark.parametrize("key", [None, "team"])
def test_a_table_is_written_and_read(kind, key, s3, tmp_path, open_):
    sink = opened(place(kind, s3, tmp_path, key=key), tmp_path)
    sink.write(0, table(SCORES, [A, B]), None)
    sink.write(1, table(SCORES, [A, C]), weights(-1, 1))
    sink = opened(place(kind, s3, tmp_path, key=key), tmp_path)
    sink.write(1, table(SCORES, [A, C]), weights(-1, 1))
    read = place(kind, s3, tmp_path)
    assert sorted(row["team"] for row in read.load(SCORES).to_pylist()) == ["b", "c"]
    source = open_(read, SCORES)
    assert source.latest()["table"] > 0


@pytest.mark.more
def test_a_bucket_that_does_not_exist(s3, tmp_path):
    with pytest.raises(SinkFailed, match="NoSuchBucket"):
        opened(place("delta", s3, tmp_path, "no-such-bucket"), tmp_path)
    with pytest.raises((SinkFailed, SinkUnavailable)):
        opened(place("iceberg", s3, tmp_path, "no-such-bucket"), tmp_path)


def test_a_store_that_is_away(tmp_path):
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "Xq7JmzW9Vt"}
    with pytest.raises(SinkUnavailable, match="cannot be written") as raised:
        opened(ms.delta_table("s3://tests/table", options=options), tmp_path)
    assert "Xq7JmzW9Vt" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
