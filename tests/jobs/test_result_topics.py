"""How many partitions a topic gets that a job creates."""

from __future__ import annotations

import millstream as ms
from millstream.jobs.results.result_topics import partitions_of

SCHEMA = "user string, n int, at timestamp"
READ = {"read_scores": 4, "read_more": 6, "read_others": 9}


def test_a_result_has_as_many_as_the_largest_topic_that_feeds_it() -> None:
    flow = ms.Flow("totals")
    scores = flow.read("scores", SCHEMA, event_time="at")
    both = scores.union(flow.read("more", SCHEMA, event_time="at"))
    panes = both.key_by("user").window(ms.fixed("1 minute")).agg(total=ms.sum("n"))
    panes.write("totals")
    panes.late.write("totals.late")
    scores.dead.write("scores.dead")
    scores.write(ms.kafka("host", topic="copy")).dead.write("copy.dead")
    flow.read(ms.rate(1), "value long, timestamp timestamp").write("ticks")
    flow.read("others", SCHEMA).write("chosen", partitions=2)
    found = {output.name: partitions_of(output, READ) for output in flow.check()}
    assert found == {
        "write_totals": 6,
        "write_totals.late": 6,
        "write_scores.dead": 4,
        "write_kafka_copy": 4,
        "write_copy.dead": 4,
        "write_ticks": 1,
        "write_chosen": 2,
    }


def test_results_that_are_not_by_key_are_one_sequence_in_one_partition() -> None:
    flow = ms.Flow("totals")
    scores = flow.read("scores", SCHEMA, event_time="at")
    panes = scores.window(ms.fixed("1 minute")).agg(total=ms.sum("n"))
    panes.write("totals")
    panes.where("total > 0").select("total").write("positive")
    panes.write("spread", partitions=3)
    scores.where("n > 0").write("scored")
    found = {output.name: partitions_of(output, READ) for output in flow.check()}
    assert found == {"write_totals": 1, "write_positive": 1, "write_spread": 3, "write_scored": 4}
