"""The tables of a Postgres that tests capture, and a connection to them."""

import psycopg
import pytest

from .support import remove_slots

POSTGRES_TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, product text, amount numeric(10, 2), tags text[]);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE places (x int, name text, PRIMARY KEY (x, name));
CREATE TABLE notes (text text);
ALTER TABLE notes REPLICA IDENTITY FULL;
"""


@pytest.fixture
def db(dsn):
    """A connection to a database of its own; slots, which would outlive it, are dropped."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(POSTGRES_TABLES)
        yield db
        remove_slots(db)
