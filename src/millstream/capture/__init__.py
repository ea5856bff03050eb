"""Change data capture: the rows of database tables, and every change of them, as records of a log."""
