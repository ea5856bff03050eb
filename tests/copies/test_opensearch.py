"""A copy in a real OpenSearch: writes that come too late are refused, and nothing but copies is touched."""

import json
import urllib.error

import pytest

import millstream as ms
from millstream.cli.bridge_commands.follow import copy_of
from millstream.copies.following import Follower, rebuild
from millstream.copies.opensearch_store import id_of
from millstream.errors import AlreadyExists, InvalidInput, SinkFailed, SinkUnavailable
from waiting import until

from .test_copies import rows_in_opensearch

pytestmark = [pytest.mark.more, pytest.mark.xdist_group("opensearch")]
WRITER = "topic rows"


def encoded(**rows):
    return {key: None if name is None else json.dumps({"name": name}).encode() for key, name in rows.items()}


def names(server, index):
    return {key: row["name"] for key, row in rows_in_opensearch(server, index).items()}


@pytest.fixture
def index(request):
    return f"rows-{abs(hash(request.node.nodeid)) % 10**12}"


@pytest.fixture
def copy(opensearch_server, index):
    return ms.opensearch(opensearch_server.url, index)


def test_a_copy_follows_is_rebuilt_and_survives_a_kill_of_the_server(
    log, opensearch_server, index, monkeypatch
) -> None:
    monkeypatch.setattr("millstream.capture.stepping.RETRY_SECONDS", 0.1)
    log.create_topic("rows", schema="id int, name string", compaction=True)
    with log.producer(acks="all") as producer:
        for id, name in ((1, "2026-01-01"), (2, "milk"), (1, "green tea")):
            producer.send("rows", {"id": id, "name": name}, key=str(id))
        producer.send("rows", None, key="2")
    copy = copy_of(f"opensearch:{opensearch_server.url}/{index}", None)
    store = copy.open_store()
    with Follower(log, "rows", store) as follower:
        follower.catch_up()
        assert names(opensearch_server, index) == {"1": "green tea"}
        before = list(opensearch_server.ask(f"/_alias/{index}"))
        other = copy.open_store()
        assert rebuild(log, "rows", other) == 4
        other.close()
        assert list(opensearch_server.ask(f"/_alias/{index}")) != before
        with log.producer(acks="all") as producer:
            producer.send("rows", {"id": 3, "name": "jam"}, key="3")
        follower.catch_up()
        assert names(opensearch_server, index) == {"1": "green tea", "3": "jam"}
        opensearch_server.kill()
        with log.producer(acks="all") as producer:
            producer.send("rows", {"id": 4, "name": "egg"}, key="4")
        with pytest.raises(SinkUnavailable, match="cannot be reached"):
            until(lambda: follower.step(0.05) and False, "it notices")
        opensearch_server.start()
        follower.seek_to_mark()
        follower.catch_up()
    store.close()
    assert names(opensearch_server, index) == {"1": "green tea", "3": "jam", "4": "egg"}
    found = opensearch_server.ask(f"/{index}-*")
    assert len(found) == 1, "indices that were replaced are gone"


def test_what_a_slow_process_sends_too_late_changes_nothing(opensearch_server, copy, index) -> None:
    """Method: a process claims its write, another one writes twice, and only then the first one sends its rows."""
    slow, fast = copy.open_store(), copy.open_store()
    assert slow.apply(encoded(a="1", b="1"), WRITER, {"at": 1}, None)
    generation = slow._generation()
    noted = slow._noted(generation)
    claimed = slow._note(generation, type(noted)(noted.number + 1, noted.marks, noted.place))
    assert fast.apply(encoded(a="2", b=None), WRITER, {"at": 2}, {"at": 1})
    assert fast.apply(encoded(c="3"), WRITER, {"at": 3}, {"at": 2})
    assert slow._send(generation, encoded(a="late", b="late"), claimed.number)
    assert slow._note(generation, claimed) is None, "its claim does not hold any more"
    assert names(opensearch_server, index) == {"a": "2", "c": "3"}
    assert not slow.apply(encoded(a="old"), WRITER, {"at": 2}, {"at": 1}), "the mark is another one"
    assert fast.mark(WRITER) == {"at": 3}
    slow.close()
    fast.close()


def test_a_write_to_an_index_that_was_replaced_does_not_create_it(opensearch_server, copy, index) -> None:
    store = copy.open_store()
    assert store.apply(encoded(a="1"), WRITER, {"at": 1}, None)
    generation = store._generation()
    assert store.apply(encoded(b="2"), WRITER, {"at": 2}, {"at": 1}, clear=True)
    assert not store._send(generation, encoded(c="late"), 99)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        opensearch_server.ask(f"/{generation}")
    assert names(opensearch_server, index) == {"b": "2"}
    store.close()


def test_keys_that_cannot_be_ids(opensearch_server, copy, index) -> None:
    keys = ["a/b?c", "", "~x", "ü" * 256, "ü" * 257, '["1", "here"]', " "]
    store = copy.open_store()
    assert store.apply({key: json.dumps({"name": key}).encode() for key in keys}, WRITER, {"at": 1}, None)
    assert sorted(names(opensearch_server, index).values()) == sorted(keys)
    assert all(store.holds(key, json.dumps({"name": key}).encode()) for key in keys)
    assert not store.holds("a/b?c", b'{"name": "other"}')
    assert id_of("a") == "a"
    assert store.apply(dict.fromkeys(keys), WRITER, {"at": 2}, {"at": 1})
    assert names(opensearch_server, index) == {}
    store.close()


def test_mistakes_are_refused(opensearch_server, copy, index) -> None:
    opensearch_server.ask(f"/{index}", {}, "PUT")
    with pytest.raises(AlreadyExists, match="not a copy"):
        copy.open_store().mark(WRITER)
    typed = ms.opensearch(
        opensearch_server.url, f"{index}-typed", properties={"name": {"type": "integer"}}
    ).open_store()
    with pytest.raises(SinkFailed, match='row of key "a": failed to parse') as refused:
        typed.apply(encoded(a="tea"), WRITER, {"at": 1}, None)
    assert "properties=" in refused.value.next_step
    assert typed.mark(WRITER) is None
    typed.close()
    for wrong in ("opensearch:", "opensearch:http://host", f"opensearch:{opensearch_server.url}/A"):
        with pytest.raises(InvalidInput):
            copy_of(wrong, None)
