"""What serves the current row of a table that a job keeps up to date, wherever it is kept."""

from millstream.serving.rows import TableUnavailable
from millstream.serving.tables import Tables, open_table

__all__ = ["TableUnavailable", "Tables", "open_table"]
