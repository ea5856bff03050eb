"""What a topic says about a table: replayed, it must be the table itself."""

from collections import defaultdict

from waiting import until


def records(log, topic):
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def replayed(changes, key):
    """The table that the changes add up to. An image before must be what was there, if the database sent it."""
    rows = {}
    for change in changes:
        old, new = change["before"], change["after"]
        if change["op"] == "truncate":
            rows.clear()
        elif change["op"] == "delete":
            assert rows.pop(key(old)) == old
        else:
            if change["op"] == "update":
                assert old in (None, rows[key(new)])
            elif change["op"] == "insert":
                assert key(new) not in rows, change
            rows[key(new)] = new
    return rows


def check_transactions(changes):
    """The changes of a transaction are consecutive and numbered, and positions and times never decrease."""
    ended, newest = set(), None
    numbers = defaultdict(int)
    for before, change in zip([None, *changes], changes, strict=False):
        transaction = change["transaction"]
        if transaction != newest:
            ended.add(newest)
            newest = transaction
        assert transaction not in ended
        assert change["number"] >= numbers[transaction]
        numbers[transaction] = change["number"] + 1
        if before is not None:
            assert before["position"] <= change["position"]
            assert before["at"] <= change["at"]


def wait_until_free(db, slot):
    idle = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NULL"
    until(lambda: db.execute(idle, (slot,)).fetchone(), "the slot is free")


def remove_slots(db):
    """Those of a database of Postgres, which would outlive it."""
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    for (slot,) in db.execute(slots).fetchall():
        wait_until_free(db, slot)
        db.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
