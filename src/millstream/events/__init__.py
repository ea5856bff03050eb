"""Event sourcing: the events of an application as its source of truth, in a topic of the log."""
