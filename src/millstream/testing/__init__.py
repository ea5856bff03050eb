"""Testing a flow without a JVM: play a script of rows, watermarks and clocks, check each step's output, draw it."""

from millstream.testing.compare import assert_panes, assert_steps
from millstream.testing.flow_steps import decoded, flow_step
from millstream.testing.script import play
from millstream.testing.steps import Add, Batch, Clock, Partition, Watermark
from millstream.testing.table import print_panes

__all__ = [
    "Add",
    "Batch",
    "Clock",
    "Partition",
    "Watermark",
    "assert_panes",
    "assert_steps",
    "decoded",
    "flow_step",
    "play",
    "print_panes",
]
