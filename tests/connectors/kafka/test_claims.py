"""A Kafka topic records the run that writes it; another run of the job is detected before it disturbs the first."""

import pytest
from confluent_kafka import Producer

from connectors.support import SCORES, committed, table
from millstream.connectors.claims import Claim
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.kafka import markers as kafka_markers
from millstream.connectors.opening import keeper_of, open_sink
from millstream.errors import ProducerFenced, StartOverRefused

ROW = {"team": "a", "score": 1}


@pytest.fixture
def keeper(log, topic, tmp_path):
    made = []

    def keeper(folder="job", job=None):
        ledger = FileLedger(tmp_path / folder, "out")
        made.append(keeper_of(topic, Claim.here(job or topic, "out", ledger.run, tmp_path / folder), ledger, log))
        return made[-1]

    yield keeper
    for each in made:
        each.close()


def opened(log, topic, tmp_path, folder="job"):
    return open_sink(topic, SCORES, job=topic, step="out", broker=log, folder=tmp_path / folder)


def test_another_run_is_detected_and_does_not_disturb_the_first(log, topic, keeper, tmp_path):
    keeper().make()
    first = opened(log, topic, tmp_path)
    first.write(0, table(SCORES, [ROW]), None)
    found = keeper("other").look()
    assert (found.claim.run, found.claim.folder) == (FileLedger(tmp_path / "job", "out").run, str(tmp_path / "job"))
    assert found.newest is None
    first.write(1, table(SCORES, [ROW]), None)
    assert keeper().look().newest == 1
    first.close()


@pytest.mark.more
def test_a_run_that_starts_over_shuts_the_other_out(kafka, log, topic, keeper, tmp_path):
    keeper().make()
    first = opened(log, topic, tmp_path)
    first.write(0, table(SCORES, [ROW]), None)
    before = keeper().look()
    other = keeper("other")
    other.check_clear()
    other.clear()
    after = keeper().look()
    assert (after.claim, after.there) == (None, True)
    assert after.identity != before.identity
    with pytest.raises(ProducerFenced):
        first.write(1, table(SCORES, [ROW]), None)
    first.close()
    other.make()
    assert committed(kafka.bootstrap, topic) == []
    assert keeper().look().claim.folder == str(tmp_path / "other")


def test_a_topic_of_two_jobs_is_not_emptied(log, topic, keeper, tmp_path):
    keeper().make()
    sink = opened(log, topic, tmp_path)
    sink.write(0, table(SCORES, [ROW]), None)
    sink.close()
    keeper("other", job=f"{topic}-2").make()
    with pytest.raises(StartOverRefused, match=f"of the job '{topic}-2'"):
        keeper().check_clear()
    keeper("other", job=f"{topic}-2").release()
    keeper().check_clear()


def test_an_open_transaction_of_another_job_is_not_waited_for(kafka, log, topic, keeper):
    """Its records are in the same partition of the topic of markers, before the claim."""
    own = keeper()
    own.make()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-other"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(kafka_markers.PARTITIONS):
        producer.produce(kafka_markers.TOPIC, b"{}", b"other", number)
    producer.flush(30)
    own.make()
    assert keeper("other").look().claim is not None
    producer.abort_transaction(30)
