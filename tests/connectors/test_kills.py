"""Exactly once under kill -9: a process that writes batches dies at lines spread over all of its work.

Each time the next process begins with the batch that the last one had not noted as written, or one before it. In the
end every row of every batch must be there once.
"""

import random
import shutil
from collections import Counter

import pytest

from .children import BATCHES, IN_TASKS, batch_rows, run
from .support import LAKES, Target

KILLS = 10
ATTEMPTS_OF_A_SHORT_RUN = 400
"""Those of a minute: a shorter run does its share of them, however many lines a sink has."""
ICEBERG_PLACES_MAX = 1000


def expected_rows(changing, key):
    sums = Counter()
    newest = {}
    for number in range(BATCHES):
        rows, signs = batch_rows(number, changing)
        for row, sign in zip(rows, signs or [1] * len(rows), strict=True):
            sums[row["team"], row["score"]] += sign
            if sign > 0:
                newest[row["team"]] = (row["team"], row["score"])
    return Counter(newest.values()) if key else +sums


def found_rows(target):
    """As the sum of their weights, where they have some."""
    sums = Counter()
    for row in target.rows():
        weight = row.get("weight")
        sums[row["team"], row["score"]] += 1 if weight in (None, "") else int(weight)
    return +sums


KINDS = [
    pytest.param("topic", None, False, marks=pytest.mark.more),
    ("topic", None, True),
    pytest.param("parquet", None, True, marks=pytest.mark.more),
    pytest.param("csv", None, False, marks=pytest.mark.more),
    pytest.param("sqlite", None, True, marks=pytest.mark.more),
    ("sqlite", "team", True),
    ("rotating", None, True),
    pytest.param("postgres", None, True, marks=pytest.mark.more),
    pytest.param("postgres", "team", True, marks=pytest.mark.more),
    *(
        pytest.param(kind, key, changing, marks=pytest.mark.more)
        for kind in LAKES
        for key, changing in ((None, False), (None, IN_TASKS), (None, True), ("team", False), ("team", True))
    ),
    pytest.param("parquet", None, IN_TASKS, marks=pytest.mark.more),
]


@pytest.fixture
def new_folder(tmp_path, request):
    """A folder, and for Postgres a database, for one attempt; and where a child tells what it has done."""

    def new_folder(kind, name):
        (tmp_path / name).mkdir()
        dsn = request.getfixturevalue("server").new_database() if kind == "postgres" else None
        return tmp_path / name, dsn, tmp_path / f"{name}.diary"

    return new_folder


def lines_of_all_work(kind, key, changing, new_folder):
    folder, dsn, diary = new_folder(kind, "rehearsal")
    assert run(kind, folder, dsn, key, changing, 0, 0, diary) == 0
    return int(diary.read_text().split()[-1])


def written(diary):
    """The newest batch that a child has noted as written."""
    text = diary.read_text() if diary.exists() else ""
    return max((int(word) for word in text.split("lines")[0].split()), default=-1)


def killed_and_finished(kind, key, changing, new_folder):
    """Where a process was killed again and again, each time at another line, and then finished."""
    lines = lines_of_all_work(kind, key, changing, new_folder)
    folder, dsn, diary = new_folder(kind, "real")
    chance = random.Random(f"{kind} {key} {changing}")
    killed = 0
    for _ in range(KILLS):
        first = min(max(0, written(diary) + chance.choice([0, 1])), BATCHES - 1)
        die_at = chance.randrange(1, lines * 2 // BATCHES)  # within about two batches, so that all get their share
        killed += run(kind, folder, dsn, key, changing, first, die_at, diary) == -9
    assert killed > KILLS // 4
    assert run(kind, folder, dsn, key, changing, max(0, written(diary)), 0, diary) == 0
    return Target(kind, folder, dsn, key)


@pytest.mark.parametrize(("kind", "key", "changing"), KINDS)
def test_no_kill_loses_or_duplicates_a_row(kind, key, changing, new_folder):
    target = killed_and_finished(kind, key, changing, new_folder)
    assert found_rows(target) == expected_rows(changing, key)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "key", "changing"), KINDS)
def test_a_kill_at_any_line_is_harmless(kind, key, changing, new_folder, rounds):
    """One kill per attempt, at every line in turn; where the log works in threads of its own, at every 29th.

    With those of its library, Iceberg has too many lines: they are spread over all of them.
    """
    lines = lines_of_all_work(kind, key, changing, new_folder)
    steps = {"topic": 29, "iceberg": max(1, lines // ICEBERG_PLACES_MAX)}
    places = range(1, lines, steps.get(kind, 1))
    attempts = rounds(len(places), min(len(places), 20))
    if attempts < len(places):
        attempts = min(attempts, rounds(ATTEMPTS_OF_A_SHORT_RUN, 20))
    for die_at in places[:: max(1, len(places) // attempts)]:
        folder, dsn, diary = new_folder(kind, f"at-{die_at}")
        run(kind, folder, dsn, key, changing, 0, die_at, diary)
        assert run(kind, folder, dsn, key, changing, max(0, written(diary)), 0, diary) == 0
        assert found_rows(Target(kind, folder, dsn, key)) == expected_rows(changing, key), f"killed at line {die_at}"
        shutil.rmtree(folder)
