"""Capture of MariaDB: its binary log, in row format, and the rows of tables in chunks between its transactions."""
