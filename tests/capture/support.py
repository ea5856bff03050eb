"""What a topic says about a table: replayed, it must be the table itself."""

from collections import defaultdict


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
