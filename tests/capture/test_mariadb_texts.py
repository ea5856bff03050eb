"""What a capture of MariaDB reads from texts: addresses, and statements of the binary log."""

import pytest

from millstream.capture.mariadb.address import parsed
from millstream.capture.mariadb.statements import dropped_database, replaced, truncated, writes_to
from millstream.errors import InvalidInput


def test_statements_about_tables() -> None:
    assert truncated("truncate `a``b`.c", "d") == ("a`b", "c")
    assert truncated("/* x */ TRUNCATE TABLE t", "d") == ("d", "t")
    assert truncated("CREATE TABLE t (n int)", "d") is None
    assert {("d", "a"), ("e", "b")} <= set(replaced("DROP TABLE IF EXISTS `a`,`e`.`b` /* generated */", "d"))
    assert replaced("ALTER TABLE t ADD COLUMN n int", "d") == []
    assert replaced("ALTER TABLE t RENAME COLUMN a TO b", "d") == []
    assert replaced("ALTER TABLE t DROP PARTITION p", "d") == [("d", "t")]
    assert replaced("CREATE OR REPLACE TABLE t (n int)", "d") == [("d", "t")]
    assert ("d", "t") in replaced("DROP TABLE /*!32312 IF EXISTS*/ t", "d")
    assert writes_to("INSERT INTO d.`t` VALUES (1)", "t")
    assert writes_to("/* app */ UPDATE t SET n = '#'", "t")
    assert writes_to("SET STATEMENT max_statement_time = 9 FOR DELETE FROM t", "t")
    assert truncated("SET STATEMENT lock_wait_timeout = 1 FOR TRUNCATE t", "d") == ("d", "t")
    assert not writes_to("INSERT INTO other VALUES (1)", "t")


def test_statements_about_databases() -> None:
    assert dropped_database("DROP DATABASE d") == "d"
    assert dropped_database("drop schema if exists `a``b`") == "a`b"
    assert dropped_database("/*!40000 DROP DATABASE IF EXISTS `d`*/") == "d"
    assert dropped_database("CREATE OR REPLACE /* x */ DATABASE d CHARACTER SET utf8mb4") == "d"
    for other in (
        "CREATE DATABASE d",
        "CREATE DATABASE IF NOT EXISTS d",
        "DROP TABLE d",
        "ALTER DATABASE d COMMENT ''",
    ):
        assert dropped_database(other) is None


def test_a_password_is_never_shown() -> None:
    address = parsed("mariadb://shop:geh%40im@db/shop")
    assert (address.password, address.port) == ("geh@im", 3306)
    assert "geh" not in f"{address} {address!r}"
    for wrong in ("mariadb://db/shop", "mariadb://a@db", "mariadb://a@db/b?x=1", "mariadb://a@db:x/b", "a:geheim@db/b"):
        with pytest.raises(InvalidInput) as refused:
            parsed(wrong)
        assert "geheim" not in str(refused.value)
