"""The suite that every bridge and every sink with a server passes, and a proxy that breaks connections.

A connector of another package passes it too: subclass `BridgeSuite` or `SinkSuite` in a file of tests.
"""

from millstream.testing.connectors.bridge_suite import BridgeSuite, BridgeUnderTest, DoorSuite, Message, NumberedSuite
from millstream.testing.connectors.proxy import FaultProxy
from millstream.testing.connectors.sink_suite import Delivered, SinkSuite, SinkUnderTest, UnconnectedSinkSuite

__all__ = [
    "BridgeSuite",
    "BridgeUnderTest",
    "Delivered",
    "DoorSuite",
    "FaultProxy",
    "Message",
    "NumberedSuite",
    "SinkSuite",
    "SinkUnderTest",
    "UnconnectedSinkSuite",
]
