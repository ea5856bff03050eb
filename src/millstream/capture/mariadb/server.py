"""What a MariaDB server must be like to be captured, checked without changing it."""

from __future__ import annotations

from typing import Any

from millstream.capture.mariadb.connections import rows
from millstream.errors import InvalidInput, MillstreamError

VERSION_MIN = (10, 5)
_SETTINGS = "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@log_bin_compress"
_WANTED = (("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("binlog_row_metadata", "FULL"))


def check_server(db: Any, where: str) -> None:
    def refused(what: str, next_step: str) -> MillstreamError:
        return InvalidInput(what, where=where, next_step=next_step)

    version = str(rows(db, "SELECT VERSION()")[0][0])
    if "mariadb" not in version.lower():
        raise refused(f"the server is not MariaDB, but {version}", "capture a MariaDB server")
    if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
        raise refused(f"MariaDB {version} is older than version 10.5", "upgrade the server")
    has_log, *found, is_compressed = rows(db, _SETTINGS)[0]
    if not int(has_log):
        raise refused(
            "the server has no binary log",
            "set log_bin, server_id, binlog_format=ROW and binlog_row_metadata=FULL in its configuration, and restart",
        )
    for (name, wanted), value in zip(_WANTED, found, strict=True):
        if str(value).upper() != wanted:
            raise refused(
                f"{name} is '{value}', and changes can only be captured if it is '{wanted}'",
                f"SET GLOBAL {name} = '{wanted}', also in the server's configuration, and let applications reconnect",
            )
    if int(is_compressed):
        raise refused(
            "log_bin_compress is on, and such a binary log cannot be read", "SET GLOBAL log_bin_compress = OFF"
        )


def check_nothing_is_prepared(db: Any, where: str) -> None:
    """A prepared transaction has its rows in the binary log before its commit, so before a capture that starts now."""
    if rows(db, "XA RECOVER"):
        raise InvalidInput(
            "an XA transaction is prepared, and a capture that starts now would miss its changes",
            where=where,
            next_step="XA COMMIT or XA ROLLBACK those that XA RECOVER lists, then start the capture again",
        )


def folds_names(db: Any) -> bool:
    """Whether names of databases and tables in different cases are the same."""
    return bool(int(rows(db, "SELECT @@lower_case_table_names")[0][0]))


def charsets(db: Any) -> dict[int, str]:
    """The character set of each collation, by its number."""
    names = "information_schema.collation_character_set_applicability"
    has_numbers = rows(db, f"SHOW COLUMNS FROM {names} LIKE 'ID'")
    found = rows(
        db,
        f"SELECT id, character_set_name FROM {names if has_numbers else 'information_schema.collations'} "
        "WHERE id IS NOT NULL AND character_set_name IS NOT NULL",
    )
    return {int(number): str(name) for number, name in found}
