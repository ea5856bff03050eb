"""Stored queries as a step of a plan."""
