"""A flow that answers questions in this process, on the local runner: for tests of callers, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import millstream as ms
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.local import Local
from millstream.log import Broker
from millstream.plan.nodes import Read
from millstream.plan.steps.asks import REQUEST, Ask
from millstream.plan.time.bundles import BEGINNING, Bundle, Row


def tenths(name: str = "sums") -> tuple[ms.Flow, Ask]:
    flow = ms.Flow(name)
    return flow, flow.ask("tenth", "n int", lambda requests: requests.select("request", tenth="10 / n"))


@contextmanager
def answering(log: Broker, name: str = "sums") -> Iterator[Ask]:
    """Answers requests until it is left."""
    flow, ask = tenths(name)
    prepare_topics(flow.asks.values(), log)
    (output,) = flow.outputs
    runner, ends = Local([output]), threading.Event()
    (source,) = (node for node in runner.order if isinstance(node, Read))

    def answer() -> None:
        clock = 0
        with log.consumer(ask.requests_topic) as consumer, log.producer() as producer:
            while not ends.is_set():
                first = consumer.poll(0.05)
                rows = [Row(record.value, None, 1) for record in (*first, *consumer.until_caught_up())]
                before, clock = clock, time.time_ns() // 1_000
                sent = runner.step({source: Bundle(rows, BEGINNING, BEGINNING, before, clock)})
                for row in sent[output].rows:
                    producer.send(ask.answers_topic, row.values, key=row.values[REQUEST])
                producer.flush()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield ask
    finally:
        ends.set()
        thread.join()
