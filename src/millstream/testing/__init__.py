"""Testing a flow without a JVM: play a script of rows, watermarks and clocks, check each step's output, draw it."""

from millstream.testing.compare import assert_panes, assert_steps
from millstream.testing.script import play
from millstream.testing.steps import Add, Clock, Partition, Watermark
from millstream.testing.table import print_panes

__all__ = ["Add", "Clock", "Partition", "Watermark", "assert_panes", "assert_steps", "play", "print_panes"]
