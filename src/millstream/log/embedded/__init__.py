"""The log in a folder: the ports implemented with files and a coordinator in SQLite, without a server."""

from millstream.log.embedded.log import EmbeddedLog
from millstream.log.embedded.topic import Topic

__all__ = ["EmbeddedLog", "Topic"]
