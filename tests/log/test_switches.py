"""Goal: a switch moves all readers of a name at once, whole or not at all, and can be taken back; writers stay.

Method: consumers in this process for what must be exact, groups and switches in processes of their own, killed at every
step, for what must last.
"""

import logging
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from millstream.errors import AlreadyExists, DamagedLog, InvalidInput, InvalidSetting, UnknownTopic
from millstream.log import EmbeddedLog, TopicVersion
from millstream.log.embedded import switch_file
from millstream.log.storage.disk import read_document

from .processes import consume_name, lines, run, running, start, switch_for_ever, switch_until_step, wait_until

DAY = datetime(2025, 6, 1, tzinfo=UTC)


def fill(log, topic, numbers, partitions=1, prefix=None):
    """Numbered records, a minute of time apart."""
    with log.producer() as producer:
        for number in numbers:
            text = f"{prefix or topic}:{number}"
            at = DAY + timedelta(minutes=number)
            producer.send(topic, text.encode(), partition=number % partitions, timestamp=at)


def numbered(topic, numbers):
    return [f"{topic}:{number}".encode() for number in numbers]


def rest(consumer):
    return sorted(record.value for record in consumer.until_caught_up())


@pytest.fixture
def two(log):
    """A topic and its second version, with other numbers of partitions."""
    log.create_topic("totals", partitions=2)
    log.create_topic("totals.v2", partitions=3)
    fill(log, "totals", range(10), 2)
    fill(log, "totals.v2", range(6), 3)
    return log


def test_new_readers_follow_and_writers_stay(two, other, read, caplog):
    assert two.resolve("totals") == "totals"
    switch = two.switch("totals", "totals.v2")
    assert (switch.name, switch.topic, switch.before) == ("totals", "totals.v2", ("totals",))
    for log in (two, other):
        assert log.resolve("totals") == log.resolve("totals.v2") == "totals.v2"
        assert sorted(read(log, "totals")) == numbered("totals.v2", range(6))
    with caplog.at_level(logging.WARNING):
        fill(two, "totals", [10], 2)
    assert "readers of 'totals' were switched to 'totals.v2'" in caplog.text
    assert sorted(read(two, "totals")) == numbered("totals.v2", range(6))
    assert b"totals:10" in read(two, "totals", pinned=True)
    assert two.topic_versions("totals") == [TopicVersion("totals", False), TopicVersion("totals.v2", True)]
    assert two.describe_topic("totals").switched_to == "totals.v2"
    assert two.describe_topic("totals.v2").serves == ("totals",)


def test_a_switch_outlives_the_log_being_closed(two, read):
    two.switch("totals", "totals.v2")
    two.close()
    with EmbeddedLog(two.path, upkeep=False) as log:
        assert sorted(read(log, "totals")) == numbered("totals.v2", range(6))


def test_a_running_reader_comes_over_and_resumes_where_it_was(two, other):
    with two.consumer("totals") as consumer:
        assert len(consumer.poll(1, max_records=3)) == 3
        other.switch("totals", "totals.v2")
        assert rest(consumer) == numbered("totals.v2", range(6))
        assert {place.topic for place in consumer.assignment} == {"totals.v2"}
        assert consumer.position("totals", 0) == consumer.position("totals.v2", 0) == 2
        fill(other, "totals.v2", [6], 3)
        assert rest(consumer) == numbered("totals.v2", [6])
        two.switch_back("totals")
        assert len(rest(consumer)) == 7
        other.switch("totals", "totals.v2")
        assert rest(consumer) == []


def test_a_pinned_reader_stays(two):
    with two.consumer("totals", pinned=True) as consumer:
        consumer.poll(1, max_records=3)
        two.switch("totals", "totals.v2")
        assert len(rest(consumer)) == 7


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_group_comes_over_and_resumes_where_it_was(two, other, delivery):
    with two.consumer("totals", group="g", delivery=delivery) as consumer:
        assert len(consumer.poll(1, max_records=3)) == 3
        other.switch("totals", "totals.v2")
        assert rest(consumer) == numbered("totals.v2", range(6))
    two.switch_back("totals")
    with two.consumer("totals", group="g", delivery=delivery) as consumer:
        assert len(rest(consumer)) == 7
        two.switch("totals", "totals.v2")
        assert rest(consumer) == []
        two.switch_back("totals")
        assert rest(consumer) == []


def test_a_transaction_takes_what_was_read_before_its_consumer_comes_over(two):
    two.create_topic("out")
    with two.consumer("totals", group="g", delivery="exactly_once") as consumer, two.producer(name="p") as producer:
        records = consumer.poll(1, max_records=3)
        two.switch("totals", "totals.v2")
        records += consumer.poll(1, max_records=2)
        assert {record.topic for record in records} == {"totals"}
        with producer.transaction(consumer):
            producer.send("out", b"x")
        assert rest(consumer) == numbered("totals.v2", range(6))
    assert sum(p.next_offset or 0 for p in two.describe_group("g").partitions if p.topic == "totals") == 5


def test_a_loop_over_records_comes_over(two):
    with two.consumer("totals") as consumer:
        seen = []
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 1:
                two.switch("totals", "totals.v2")
            if seen[-1] == b"totals.v2:5":
                break
    assert Counter(value for value in seen if value.startswith(b"totals.v2")) == Counter(
        numbered("totals.v2", range(6))
    )


def test_no_member_of_a_group_reads_the_old_topic_after_the_switch(two, other):
    members = [two.consumer("totals", group="g"), other.consumer("totals", group="g")]
    wait_until(lambda: [m.poll(0, max_records=1) for m in members] and all(m.assignment for m in members))
    two.switch("totals", "totals.v2")
    seen = []
    wait_until(lambda: seen.extend(r.value for m in members for r in m.poll(0, max_records=1)) or len(seen) >= 6)
    wait_until(lambda: not [m.poll(0) for m in members if m.lag()] and all(m.assignment for m in members))
    assert sorted(seen) == numbered("totals.v2", range(6))
    assert {place.topic for m in members for place in m.assignment} == {"totals.v2"}
    for member in members:
        member.close()


def test_polling_reads_the_switches_only_when_they_have_changed(two, other, monkeypatch):
    reads = []
    monkeypatch.setattr(switch_file, "read_document", lambda path: reads.append(path) or read_document(path))
    with two.consumer("totals") as consumer:
        two.switch("totals", "totals.v2")
        for _ in range(50):
            consumer.poll(0)
        assert len(reads) == 1
        other.switch_back("totals")
        before = len(reads)
        for _ in range(50):
            consumer.poll(0)
        assert len(reads) == before + 1


# ---------------------------------------------------------------- where readers begin


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize(
    ("at", "expected"), [("earliest", range(6)), ("latest", []), (DAY + timedelta(minutes=4), [4, 5])]
)
def test_where_running_readers_start(two, group, at, expected):
    with two.consumer("totals", group=group) as consumer:
        consumer.poll(1, max_records=2)
        two.switch("totals", "totals.v2", at=at)
        fill(two, "totals.v2", [6], 3)  # came after the switch, and before the reader does
        assert rest(consumer) == numbered("totals.v2", [*expected, 6])


@pytest.mark.parametrize("setting", ["earliest", "latest"])
def test_a_group_that_was_away_starts_where_the_switch_says(two, read, setting):
    assert len(read(two, "totals", group="away")) == 10
    two.switch("totals", "totals.v2", at=DAY + timedelta(minutes=4))
    assert sorted(read(two, "totals", group="away", start=setting)) == numbered("totals.v2", [4, 5])
    assert len(read(two, "totals", group="new", start=setting)) == (6 if setting == "earliest" else 0)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize(("already_read", "expected"), [(3, [3, 4, 5, 6, 7]), (5, [5, 6, 7]), (0, range(8))])
def test_corresponding_is_the_time_a_reader_has_reached(log, group, already_read, expected):
    log.create_topic("a")
    log.create_topic("b", partitions=2)
    fill(log, "a", range(5))
    fill(log, "b", range(8), 2)
    with log.consumer("a", group=group) as consumer:
        if already_read:
            consumer.poll(1, max_records=already_read)
            if group:
                consumer.commit()
        log.switch("a", "b", at="corresponding")
        assert rest(consumer) == numbered("b", expected)


def test_an_unknown_start_is_refused(two):
    with pytest.raises(InvalidSetting):
        two.switch("totals", "totals.v2", at="yesterday")
    assert two.resolve("totals") == "totals"


# ---------------------------------------------------------------- names and versions


def test_switching_back_reverses_each_switch(two):
    two.create_topic("totals.v3")
    two.switch("totals", "totals.v2")
    two.switch("totals", "totals.v3")
    assert two.switch_back("totals").topic == "totals.v2"
    assert two.switch_back("totals").topic == "totals"
    with pytest.raises(InvalidInput, match="nothing to switch"):
        two.switch_back("totals")
    two.switch("totals", "totals.v3")
    assert two.switch_back("totals").topic == "totals"
    assert [version.topic for version in two.topic_versions("totals")] == ["totals", "totals.v2", "totals.v3"]
    two.switch("totals", "totals.v2")
    assert two.switch("totals", "totals.v2").before == ("totals",)  # said twice is said once
    two.unswitch("totals")
    assert two.topic_versions("totals") == [TopicVersion("totals", True)]


def test_a_name_stands_for_a_topic_and_never_for_another_name(two):
    two.create_topic("x")
    two.switch("totals", "totals.v2")
    with pytest.raises(InvalidInput, match=r"read 'totals\.v2' themselves"):
        two.switch("x", "totals")
    with pytest.raises(InvalidInput, match=r"readers of 'totals' read topic 'totals\.v2'"):
        two.switch("totals.v2", "x")
    with pytest.raises(UnknownTopic):
        two.switch("totals", "nowhere")
    with pytest.raises(UnknownTopic):
        two.topic_versions("nowhere")
    assert two.resolve("totals") == "totals.v2"


def test_a_name_needs_no_topic_of_its_own(two, read):
    two.switch("newest", "totals.v2")
    assert sorted(read(two, "newest")) == numbered("totals.v2", range(6))
    with two.producer() as producer, pytest.raises(UnknownTopic, match=r"its readers read 'totals\.v2'"):
        producer.send("newest", b"x")
    with pytest.raises(AlreadyExists, match=r"readers of 'newest' read topic 'totals\.v2'"):
        two.create_topic("newest")
    two.unswitch("newest")
    with pytest.raises(UnknownTopic):
        read(two, "newest")


def test_deleting_versions(two, read):
    two.switch("totals", "totals.v2")
    with pytest.raises(InvalidInput, match="readers of 'totals' read topic"):
        two.delete_topic("totals.v2")
    two.delete_topic("totals")
    assert sorted(read(two, "totals")) == numbered("totals.v2", range(6))
    assert two.topic_versions("totals") == [TopicVersion("totals.v2", True)]
    with pytest.raises(InvalidInput, match="nothing to switch"):
        two.switch_back("totals")


def test_a_queue_is_made_for_the_topic_of_now(two):
    two.switch("totals", "totals.v2")
    assert two.create_queue("q", "totals").topic == "totals.v2"


def test_a_damaged_file_is_reported(two):
    two.switch("totals", "totals.v2")
    (two.path / "switches.json").write_text('{"totals": {"topic": 1}}')
    with pytest.raises(DamagedLog, match="the switches cannot be read"):
        two.resolve("totals")


# ---------------------------------------------------------------- processes


def test_a_group_of_processes_comes_over_and_back_without_loss(log, tmp_path):
    log.create_topic("t", partitions=4)
    log.create_topic("t.v2", partitions=3)
    fill(log, "t", range(200), 4)
    fill(log, "t.v2", range(150), 3)
    diary = tmp_path / "diary"
    with running(*(start(consume_name, log.path, diary, "t", "g") for _ in range(2))):
        wait_until(lambda: len(lines(diary)) >= 50)
        log.switch("t", "t.v2")
        wait_until(lambda: sum(line.startswith("t.v2:") for line in lines(diary)) >= 150)
        log_members = log.describe_group("g").members
        wait_until(lambda: {p.owner for p in log.describe_group("g").partitions if p.topic == "t.v2"} == {*log_members})
        before = len(lines(diary))
        fill(log, "t", range(200, 220), 4)  # the old job continues
        fill(log, "t.v2", range(150, 200), 3)
        wait_until(lambda: len(lines(diary)) >= before + 50)
        time.sleep(0.5)  # long enough for a record of the old topic to show
        assert all(line.startswith("t.v2:") for line in lines(diary)[before:])
        log.switch_back("t")
        wait_until(lambda: sum(line.startswith("t:") for line in lines(diary)) >= 220)
    seen = Counter(lines(diary))
    assert set(seen) == {f"t:{n}" for n in range(220)} | {f"t.v2:{n}" for n in range(200)}
    assert max(seen.values()) == 1


def test_a_switch_that_dies_at_any_step_was_made_or_was_not(log, read):
    log.create_topic("a")
    log.create_topic("b")
    fill(log, "a", [0])
    fill(log, "b", [0])
    outcomes = []
    for step in range(1, 20):
        code = run(switch_until_step, log.path, "a", "b", step)
        with EmbeddedLog(log.path, upkeep=False) as again:
            outcomes.append(again.resolve("a"))
            assert read(again, "a") == numbered(outcomes[-1], [0])
            again.switch("a", "b")
            assert again.switch_back("a").topic == "a"
        if code == 0:
            break
        assert code == -9
    assert outcomes[0] == "a"
    assert outcomes[-1] == "b"
    assert code == 0


def test_killed_while_switching_on_and_on(log, tmp_path):
    for name in ("a", "b", "c"):
        log.create_topic(name)
    for turn in range(5):
        diary = tmp_path / f"diary{turn}"
        with running(start(switch_for_ever, log.path, diary, "name", ["a", "b", "c"])):
            wait_until(lambda diary=diary, count=5 + turn: len(lines(diary)) >= count)
        with EmbeddedLog(log.path, upkeep=False) as again:
            last = lines(diary)[-1]
            following = {"a": "b", "b": "c", "c": "a"}
            assert again.resolve("name") in (last, following[last])
