"""Random changes of orders and places."""

import random
import threading

from .support import check_transactions, records, replayed

KEYS = {"orders": lambda row: row["id"], "places": lambda row: (row["x"], row["name"])}


class Workload:
    """Random statements in random transactions, some of which are rolled back."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def statements(self, *rest):
        """Of one transaction: each with its values. Some fail. `rest` are further values of an order."""
        for _ in range(self.random.choice([1, 1, 2, 5, 40])):
            yield self._statement(rest)

    def is_rolled_back(self):
        return self.random.randrange(5) == 0

    def _statement(self, rest):
        pick, n = self.random.choice, self.random.randrange
        order = (n(40), pick(["a", "", None]), n(900), *rest)
        return pick(
            [
                (f"INSERT INTO orders VALUES ({', '.join(['%s'] * len(order))})", order),
                ("UPDATE orders SET amount = amount + 1 WHERE id %% 7 = %s", (n(7),)),
                ("UPDATE orders SET id = %s WHERE id = %s", (n(40), n(40))),
                ("DELETE FROM orders WHERE id = %s", (n(40),)),
                ("INSERT INTO places VALUES (%s, %s)", (n(5), pick("ab"))),
                ("UPDATE places SET x = %s WHERE x = %s AND name = %s", (n(5), n(5), pick("ab"))),
                ("DELETE FROM places WHERE x = %s", (n(5),)),
            ]
        )


def check_equal(log, rows):
    """What the topics add up to is what the tables have: `rows` returns those of one by key."""
    for table, key in KEYS.items():
        changes = records(log, table)
        assert replayed(changes, key) == rows(table)
        check_transactions(changes)


def captured_while_written(capturing, work, *others):
    """By captures that end and start again, while all write."""
    work.run(20)
    writers = [threading.Thread(target=each.run, args=(15,)) for each in (work, *others)]
    for writer in writers:
        writer.start()
    for steps in (1, 2, 4):
        with capturing() as running:
            for _ in range(steps):
                running.step(0.1)
    for writer in writers:
        writer.join()
    with capturing() as running:
        running.catch_up()
