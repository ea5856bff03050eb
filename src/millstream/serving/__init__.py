"""Serves the current rows of tables that jobs keep up to date, in any store."""

from millstream.connectors.lookups import TableUnavailable
from millstream.serving.tables import Tables, open_table

__all__ = ["TableUnavailable", "Tables", "open_table"]
