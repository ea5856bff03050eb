"""Goal: who sees that a transaction was aborted sees which; a damaged list is refused, never guessed."""

import threading

import pytest

from millstream.errors import DamagedLog
from millstream.log.storage.aborted import ENTRY, AbortedTransactions
from millstream.log.storage.disk import Disk

from .support import flip, frame, opened, transactional, values_of


def test_entries_come_back_in_order(tmp_path):
    aborted = AbortedTransactions(tmp_path / "aborted", Disk())
    for number in range(5):
        assert aborted.add(number, number, 10 * number, 100 * number) == number + 1
    assert aborted.entries(3) == [(0, 0, 0), (1, 10, 100), (2, 20, 200)]
    assert aborted.known(5) == {(number, 10 * number) for number in range(5)}
    assert aborted.known(2) == {(0, 0), (1, 10)}
    assert aborted.known(0) == frozenset()


def test_an_entry_that_was_never_counted_is_written_over(tmp_path):
    aborted = AbortedTransactions(tmp_path / "aborted", Disk())
    aborted.add(0, 1, 1, 1)
    aborted.add(1, 2, 2, 2)  # the mark that counts it was never written
    aborted.add(1, 3, 3, 3)
    assert AbortedTransactions(tmp_path / "aborted", Disk()).known(2) == {(1, 1), (3, 3)}


def aborting(folder):
    """Three aborted transactions between plain records."""
    partition = opened(folder)
    for number in range(3):
        partition.append([frame(b"plain"), transactional(b"aborted", producer=number)], sync=False)
        partition.end_transaction(number, 1, commit=False)
    return partition


def test_every_flipped_bit_is_refused_with_its_place(folder):
    """A committed reader raises an error with the position; one that reads everything needs no list."""
    aborting(folder)
    path = folder / "aborted"
    for position in range(3 * ENTRY.size):
        for bit in range(8):
            flip(path, position, bit)
            partition = opened(folder)
            with pytest.raises(DamagedLog) as refused:
                values_of(partition, committed=True)
            place = position // ENTRY.size * ENTRY.size
            assert str(refused.value.where).endswith(f"{path}, byte {place}")
            assert len(values_of(partition)) == 6
            flip(path, position, bit)
    assert values_of(opened(folder), committed=True) == [b"plain"] * 3


@pytest.mark.parametrize("size", range(3 * ENTRY.size))
def test_a_list_cut_anywhere_is_refused(folder, size):
    aborting(folder)
    content = (folder / "aborted").read_bytes()
    (folder / "aborted").write_bytes(content[:size])
    with pytest.raises(DamagedLog, match="aborted"):
        values_of(opened(folder), committed=True)


def test_a_missing_list_is_refused(folder):
    aborting(folder)
    (folder / "aborted").unlink()
    with pytest.raises(DamagedLog, match="aborted"):
        values_of(opened(folder), committed=True)


def test_threads_that_know_of_different_marks_do_not_mislead_each_other(tmp_path):
    """Readers of one process share the list; each must get the transactions of its own count at least."""
    aborted = AbortedTransactions(tmp_path / "aborted", Disk())
    for number in range(40):
        aborted.add(number, number, 0, 0)
    missing = []

    def look(counts):
        for _ in range(300):
            for count in counts:
                if not {(number, 0) for number in range(count)} <= aborted.known(count):
                    missing.append(count)

    threads = [threading.Thread(target=look, args=(counts,)) for counts in ([1, 40], [40, 20], [2, 39], [40])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
