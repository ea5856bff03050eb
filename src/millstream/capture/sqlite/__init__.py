"""Capture of SQLite: triggers record every change in a table of the database, which is read and emptied."""
