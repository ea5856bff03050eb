"""Goal: in a group every partition is read by one member at a time, shares are fair, and nothing is lost on the way.

Method: members in this process for what must be exact, members in processes of their own, killed, for what must last.
"""

# ruff: noqa: PT012 - what is raised has to leave a whole block: a transaction, or sending until there is no room

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamagedLog, InvalidInput, PartitionsRevoked, UnknownGroup
from millstream.log import EmbeddedLog, TopicPartition
from millstream.log.agreement.groups import fair_shares
from millstream.log.agreement.liveness import Participant, is_alive

from .processes import (
    consume,
    hold_the_coordinator,
    lines,
    produce_for_ever,
    running,
    start,
    transform,
    wait_until,
)


def settle(*members, total):
    """Lets members poll until together they own all partitions; returns what they were given meanwhile."""
    given = []

    def settled():
        for member in members:
            given.extend(member.poll(0))
        owned = [place for member in members for place in member.assignment]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        return len(owned) == total

    wait_until(settled)
    time.sleep(0.25)
    wait_until(settled)
    return given


def fill(log, count, partitions, topic="t"):
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def test_shares_are_fair_and_move_when_members_come_and_go(log, other):
    log.create_topic("t", partitions=6)
    one = log.consumer("t", group="g")
    settle(one, total=6)
    two = other.consumer("t", group="g")
    settle(one, two, total=6)
    assert sorted(map(len, (one.assignment, two.assignment))) == [3, 3]
    three, four = (log.consumer("t", group="g") for _ in range(2))
    settle(one, two, three, four, total=6)
    assert sorted(len(member.assignment) for member in (one, two, three, four)) == [1, 1, 2, 2]
    stays = set(one.assignment)
    two.close()
    settle(one, three, four, total=6)
    assert [len(member.assignment) for member in (one, three, four)] == [2, 2, 2]
    assert stays <= set(one.assignment)
    info = log.describe_group("g")
    assert len(info.members) == 3
    assert Counter(p.owner for p in info.partitions) == dict.fromkeys(info.members, 2)
    for member in (one, three, four):
        member.close()
    assert log.describe_group("g").members == ()
    assert all(p.owner is None for p in log.describe_group("g").partitions)


def test_extra_members_are_idle_and_take_over(log):
    log.create_topic("t", partitions=2)
    members = [log.consumer("t", group="g") for _ in range(4)]
    settle(*members, total=2)
    idle = [member for member in members if not member.assignment]
    assert len(idle) == 2
    for member in members:
        if member not in idle:
            member.close()
    fill(log, 10, 2)
    given = settle(*idle, total=2)
    wait_until(lambda: given.extend(r for member in idle for r in member.poll(0)) or len(given) == 10)
    assert [len(member.assignment) for member in idle] == [1, 1]
    for member in idle:
        member.close()


def test_groups_read_independently_of_each_other(log, read):
    log.create_topic("t", partitions=2)
    fill(log, 10, 2)
    expected = [b"%d" % number for number in range(10)]
    for group in ("a", "b"):
        assert sorted(read(log, "t", group=group)) == expected
        assert read(log, "t", group=group) == []
    assert log.groups() == ["a", "b"]


def test_committed_offsets_and_lag(log):
    log.create_topic("t", partitions=2)
    fill(log, 10, 2)
    with log.consumer("t", group="g") as consumer:
        assert log.describe_group("g").lag == 10
        assert consumer.lag() == 10
        consumer.poll(1, max_records=3)
        assert log.describe_group("g").lag == 10  # handed out is not done
        consumer.commit()
        assert log.describe_group("g").lag == 7
        for _ in consumer.until_caught_up():
            pass
        assert log.describe_group("g").lag == 0
    assert [p.next_offset for p in log.describe_group("g").partitions] == [5, 5]


def test_a_record_is_done_when_the_next_is_asked_for(log):
    log.create_topic("t")
    fill(log, 5, 1)
    for first in (0, 1, 2):
        with log.consumer("t", group="g") as consumer:
            records = iter(consumer)
            assert next(records).offset == first
            assert next(records).offset == first + 1
            records.close()


def test_a_hand_over_commits_what_the_old_owner_has_done(log, other):
    log.create_topic("t", partitions=2)
    fill(log, 20, 2)
    one = log.consumer("t", group="g")
    seen = [record.value for record in one.poll(1, max_records=7)]
    two = other.consumer("t", group="g")
    assert two.poll(0.3) == []  # one has not let go yet
    seen += [record.value for record in settle(one, two, total=2)]
    wait_until(lambda: seen.extend(r.value for member in (one, two) for r in member.poll(0)) or len(seen) >= 20)
    assert sorted(seen) == sorted(b"%d" % number for number in range(20))
    one.close()
    two.close()


def test_a_silent_member_is_replaced_and_notified(log, other):
    log.create_topic("t", partitions=2)
    fill(log, 20, 2)
    silent = log.consumer("t", group="g", max_poll_interval="1 second")
    silent.poll(1, max_records=5)
    busy = other.consumer("t", group="g")
    wait_until(lambda: busy.poll(0.1) and len(busy.assignment) == 2)
    with pytest.raises(PartitionsRevoked, match="another member"):
        silent.commit()
    settle(silent, busy, total=2)  # it comes back and gets its share
    assert [len(silent.assignment), len(busy.assignment)] == [1, 1]
    silent.close()
    busy.close()


def test_a_member_that_was_replaced_takes_over_again_when_the_other_is_gone(log, other):
    log.create_topic("t")
    fill(log, 4, 1)
    silent = log.consumer("t", group="g", max_poll_interval="1 second")
    assert len(silent.poll(1, max_records=1)) == 1
    silent.commit()
    with other.consumer("t", group="g") as busy:
        wait_until(lambda: busy.poll(0.1))
    seen = []
    wait_until(lambda: seen.extend(silent.poll(0.1)) or silent.lag() == 0)
    assert silent.assignment == [TopicPartition("t", 0)]
    silent.close()


def test_what_is_still_owned_is_committed_though_something_else_was_lost(log, other):
    log.create_topic("t", partitions=2)
    fill(log, 4, 2)
    with log.consumer("t", group="g") as consumer:
        wait_until(lambda: consumer.poll(0.1) and consumer.lag() == 0)
        with other.coordinator.change() as db:
            db.execute("UPDATE ownership SET owner = 'other', target = 'other' WHERE partition = 0")
            db.execute("DELETE FROM offsets")
        consumer._committing.stored.clear()
        consumer.seek("earliest", partition=1)
        wait_until(lambda: consumer.poll(0.1) or log.describe_group("g").partitions[1].next_offset == 2)
        wait_until(lambda: not consumer.poll(0.1) and log.describe_group("g").partitions[1].next_offset == 2)


def test_an_exactly_once_transaction_fails_if_a_partition_went_to_another_meanwhile(log, other, read):
    log.create_topic("in", partitions=2)
    log.create_topic("out")
    fill(log, 10, 2, topic="in")
    one = log.consumer("in", group="g", delivery="exactly_once")
    with log.producer(name="one") as producer:
        two = None
        with pytest.raises(PartitionsRevoked), producer.transaction(one):
            for _ in range(2):
                for record in one.poll(1):
                    producer.send("out", record.value)
            two = other.consumer("in", group="g", delivery="exactly_once")
            wait_until(lambda: one.poll(0.1) is not None and len(one.assignment) == 1)
        assert read(log, "out") == []
        with other.producer(name="two") as second:
            pairs = ((one, producer), (two, second))

            def work():
                for consumer, writer in pairs:
                    if records := consumer.poll(0.1):
                        with writer.transaction(consumer):
                            for record in records:
                                writer.send("out", record.value)
                return len(read(log, "out")) >= 10

            wait_until(work)
    assert sorted(read(log, "out")) == sorted(b"%d" % number for number in range(10))
    one.close()
    two.close()


def test_exactly_once_record_by_record(log, read):
    log.create_topic("in")
    log.create_topic("out")
    fill(log, 20, 1, topic="in")
    with log.consumer("in", group="g", delivery="exactly_once") as consumer, log.producer(name="p") as producer:
        failures = {3, 7}
        for record in consumer:
            try:
                with producer.transaction(consumer):
                    producer.send("out", record.value)
                    if record.offset in failures:
                        failures.remove(record.offset)
                        raise ValueError
            except ValueError:
                continue
            if record.offset == 19:
                break
    assert read(log, "out") == [b"%d" % number for number in range(20)]
    assert log.describe_group("g").lag == 0


def test_a_transaction_takes_only_an_exactly_once_consumer(log, read):
    log.create_topic("t")
    log.create_topic("out")
    fill(log, 1, 1)
    with log.consumer("t", group="g") as consumer, log.producer(name="p") as producer:
        with pytest.raises(InvalidInput, match="exactly_once"), producer.transaction(consumer):
            producer.send("out", consumer.poll(1)[0].value)
        assert read(log, "out") == []


def test_at_most_once_never_hands_a_record_out_twice(log):
    log.create_topic("t")
    fill(log, 10, 1)
    first = log.consumer("t", group="g", delivery="at_most_once")
    assert len(first.poll(1, max_records=4)) == 4
    first._agreeing._membership._participant.close()  # as a death does
    with log.consumer("t", group="g", delivery="at_most_once") as second:
        records = iter(second)
        assert wait_until(lambda: next(records)).offset == 4
        second.commit()
        assert next(records).offset == 5
        second._agreeing._membership._participant.close()
        with log.consumer("t", group="g", delivery="at_most_once") as third:
            seen = []
            wait_until(lambda: seen.extend(third.poll(0.2)) or third.assignment)
            seen += third.poll(0.5)
            assert all(record.offset > 5 for record in seen)


def test_resetting_and_deleting_a_group(log, read):
    log.create_topic("t")
    fill(log, 10, 1)
    with log.consumer("t", group="g") as consumer:
        consumer.poll(1)
        for act in (lambda: log.reset_group("g", "t", "earliest"), lambda: log.delete_group("g")):
            with pytest.raises(InvalidInput, match="active"):
                act()
    log.reset_group("g", "t", 7)
    assert read(log, "t", group="g") == [b"7", b"8", b"9"]
    log.reset_group("g", "t", "latest")
    assert read(log, "t", group="g") == []
    log.delete_group("g")
    for act in (lambda: log.describe_group("g"), lambda: log.delete_group("g"), lambda: log.reset_group("g", "t", 0)):
        with pytest.raises(UnknownGroup):
            act()


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from(["x", "y"]), min_size=1), max_size=5),
    st.sets(st.tuples(st.sampled_from(["x", "y", "z"]), st.integers(0, 6)), max_size=15),
    st.randoms(use_true_random=False),
)
def test_fair_shares(members, places, rng):
    partitions = [TopicPartition(*place) for place in places]
    held = {p: rng.choice("abcdefg") for p in partitions if rng.random() < 0.7}
    shares = fair_shares(members, partitions, held)
    assert shares.keys() == set(partitions)
    for partition, member in shares.items():
        able = [name for name, topics in members.items() if partition.topic in topics]
        assert (member in able) if able else member is None
    sizes = Counter(member for member in shares.values() if member)
    if len({frozenset(topics) for topics in members.values()}) == 1 and sizes:
        counts = [sizes[member] for member in members]
        assert max(counts) - min(counts) <= 1


def test_members_in_processes_share_survive_and_lose_nothing(tmp_path, log):
    log.create_topic("t", partitions=4)
    diary = tmp_path / "diary"
    members = [start(consume, log.path, diary, "g", "at_least_once", 0.01) for _ in range(3)]
    with running(*members), log.producer() as producer:
        for round_number in range(3):
            for number in range(100):
                producer.send("t", b"%d" % (100 * round_number + number), partition=number % 4)
            producer.flush()
            wait_until(lambda: len(lines(diary)) > 50)
            victim = members.pop(0)
            victim.kill()
            victim.join()
            members.append(start(consume, log.path, diary, "g", "at_least_once", 0.01))
        wait_until(lambda: len(set(lines(diary))) == 300)
        wait_until(lambda: log.describe_group("g").lag == 0)
        wait_until(lambda: len(log.describe_group("g").members) == 3)
        wait_until(lambda: sorted(Counter(p.owner for p in log.describe_group("g").partitions).values()) == [1, 1, 2])
        for member in members:
            member.kill()
            member.join()
    assert sorted(set(map(int, lines(diary)))) == list(range(300))


def test_at_most_once_in_a_killed_process(tmp_path, log):
    log.create_topic("t", partitions=2)
    fill(log, 500, 2)
    diary = tmp_path / "diary"
    for _ in range(4):
        member = start(consume, log.path, diary, "g", "at_most_once", 0.002)
        before = len(lines(diary))
        with running(member):
            wait_until(lambda before=before: len(lines(diary)) > before + 20)
    seen = lines(diary)
    assert len(seen) == len(set(seen))


def _exactly_once(tmp_path, seed, rounds, workers):
    rng = random.Random(seed)
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("in", partitions=3)
        log.create_topic("out", partitions=2)
        total = 150 * rounds
        with log.producer() as producer:
            for number in range(total):
                producer.send("in", b"%d" % number, key=f"k{number % 5}")
        names = [f"worker-{number}" for number in range(workers)]
        running_now = {name: start(transform, log.path, name) for name in names}
        try:
            for _ in range(rounds * 3):
                time.sleep(rng.random() * 0.25)
                name = rng.choice(names)
                running_now[name].kill()
                running_now[name].join()
                running_now[name] = start(transform, log.path, name)
            wait_until(lambda: log.describe_group("doubling").lag == 0, "the group to have read everything")
        finally:
            for process in running_now.values():
                process.kill()
                process.join()
        with log.consumer("out") as consumer:
            seen = [(record.key, int(record.value)) for record in consumer.until_caught_up()]
    assert sorted(value for _, value in seen) == [2 * number for number in range(total)]
    for key in {key for key, _ in seen}:
        own = [value for one, value in seen if one == key]
        assert own == sorted(own)


def test_exactly_once_through_kills(tmp_path):
    _exactly_once(tmp_path, seed=1, rounds=3, workers=2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_exactly_once_through_many_kills(tmp_path, seed, rounds):
    _exactly_once(tmp_path, seed, rounds(10, 3), workers=1 + seed % 3)


@pytest.mark.parametrize("acks", [1, "all"])
def test_producers_and_consumers_in_processes_at_once(tmp_path, log, acks):
    log.create_topic("t", partitions=2)
    diaries = [tmp_path / f"acknowledged-{number}" for number in range(3)]
    producers = [start(produce_for_ever, log.path, diary, "t", str(n), acks, 2) for n, diary in enumerate(diaries)]
    members = [start(consume, log.path, tmp_path / "consumed", "g", "at_least_once", 0) for _ in range(2)]
    with running(*producers, *members):
        wait_until(lambda: all(len(lines(diary)) > 200 for diary in diaries))
        for producer in producers:
            producer.kill()
            producer.join()
        wait_until(lambda: log.describe_group("g").lag == 0)
    with log.consumer("t") as consumer:
        stored = [record.value.decode() for record in consumer.until_caught_up()]
    assert len(stored) == len(set(stored))
    for who, diary in enumerate(diaries):
        own = [int(value.split(":")[1]) for value in stored if value.startswith(f"{who}:")]
        acknowledged = [int(line) for line in lines(diary)]
        assert set(acknowledged) <= set(own)
        for partition in range(2):
            in_order = [number for number in own if number % 2 == partition]
            assert in_order == sorted(in_order)
    assert set(lines(tmp_path / "consumed")) == set(stored)


def test_a_participant_is_dead_once_closed_and_two_processes_may_notice(tmp_path):
    participant = Participant(tmp_path)
    assert is_alive(tmp_path, participant.id)
    assert is_alive(tmp_path, participant.id)
    participant.close()
    participant.close()
    assert not is_alive(tmp_path, participant.id)
    (tmp_path / "left-behind").touch()
    assert not is_alive(tmp_path, "left-behind")
    assert not is_alive(tmp_path, "left-behind")
    assert not (tmp_path / "left-behind").exists()
    assert len({Participant(tmp_path).id for _ in range(20)}) == 20


def test_a_participants_name_cannot_point_to_another_folder(tmp_path):
    """Names come from the coordinator's database, and the file of a dead participant is deleted."""
    participants, other = tmp_path / "participants", tmp_path / "other"
    participants.mkdir()
    other.touch()
    (participants / "link").symlink_to(other)
    for name in ("../other", str(other), "..", ""):
        assert not is_alive(participants, name)
    with pytest.raises(DamagedLog, match="symbolic link"):
        is_alive(participants, "link")
    assert other.exists()


def test_a_busy_coordinator_is_waited_for(tmp_path, log):
    log.create_topic("t")
    holder = start(hold_the_coordinator, log.path, tmp_path / "diary", 1.0)
    with running(holder):
        wait_until(lambda: lines(tmp_path / "diary"))
        with log.consumer("t", group="g") as consumer:
            assert len(consumer.assignment) == 1
