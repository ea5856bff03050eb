"""A process that writes batches to Kafka and is killed at a chosen moment of a commit."""

import os
import signal

from connectors.children import context
from connectors.support import SCORES, Target, table
from waiting import exit_code_of_child


class Dying:
    """A producer that dies around its commit: with the rows on the brokers, or when they have said yes."""

    def __init__(self, producer, moment):
        self._producer, self._moment = producer, moment

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def __len__(self):
        return len(self._producer)

    def commit_transaction(self, timeout):
        self._producer.flush(timeout)
        if self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        self._producer.commit_transaction(timeout)
        if self._moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(servers, folder, batches, moment):
    """Writes batches (by number, their rows); dies around the commit of the last."""
    sink = Target("kafka", folder, servers).open(keys=["team"])
    for number, rows in batches.items():
        if number == max(batches) and moment is not None:
            sink._producer = Dying(sink._producer, moment)
        sink.write(number, table(SCORES, rows), None)
    sink.close()


def run(*arguments):
    """The exit code of a child; -9 if it was killed."""
    process = context.Process(target=write_and_die, args=arguments, daemon=True)
    process.start()
    return exit_code_of_child(process, "the child that writes batches")
