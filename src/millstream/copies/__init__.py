"""Copies of a table that follow the log: a cache, files, a search index. Each can be rebuilt while it is read."""
