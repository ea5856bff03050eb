"""The ledger of batches: an entry stands exactly when the transaction it was part of does."""

from contextlib import suppress

import pytest

from millstream.errors import TransactionAborted
from millstream.log.agreement.ledger import Ledger


def test_an_entry_is_committed_with_the_records(log, read):
    log.create_topic("t")
    ledger = Ledger(log.coordinator, "job", "step")
    assert ledger.newest() is None
    assert not ledger.has(0)
    with log.producer(name="p") as producer:
        with producer.transaction(ledger.entry(4)):
            producer.send("t", b"x")
        assert ledger.newest() == 4
        with suppress(LookupError), producer.transaction(ledger.entry(5)):
            producer.send("t", b"y")
            raise LookupError
    assert ledger.newest() == 4
    assert ledger.has(3)
    assert not ledger.has(5)
    assert read(log, "t") == [b"x"]


def test_a_batch_that_was_written_cannot_be_committed_again(log, read):
    log.create_topic("t")
    ledger = Ledger(log.coordinator, "job", "step")
    ledger.record(7)
    with log.producer(name="p") as producer:
        for batch in (7, 6):
            with pytest.raises(TransactionAborted, match=f"batch {batch}"), producer.transaction(ledger.entry(batch)):
                producer.send("t", b"x")
    assert ledger.newest() == 7
    assert read(log, "t") == []


def test_jobs_and_steps_have_ledgers_of_their_own(log, other):
    Ledger(log.coordinator, "a", "b").record(1)
    Ledger(other.coordinator, "a", "c").record(2)
    assert Ledger(log.coordinator, "a", "c").newest() == 2
    assert Ledger(other.coordinator, "a", "b").newest() == 1
    assert Ledger(other.coordinator, "b", "a").newest() is None
    assert Ledger(other.coordinator, "a", "b", "another run").newest() is None


def test_an_older_batch_does_not_set_the_ledger_back(log):
    ledger = Ledger(log.coordinator, "job", "step")
    ledger.record(3)
    ledger.record(1)
    assert ledger.newest() == 3
