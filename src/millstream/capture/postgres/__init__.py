"""Capture of Postgres: a snapshot tied to a replication slot, then the slot's changes in commit order."""
