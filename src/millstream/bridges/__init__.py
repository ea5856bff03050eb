"""Bridges: other protocols into the log and out of it.

What comes in is received, appended, and only then acknowledged (`landing.py`). A message with a stable id is stored
once, however often it is delivered; one that cannot be used becomes a dead letter with its origin; and a sender that is
too fast is slowed down by the means of its protocol.
"""
