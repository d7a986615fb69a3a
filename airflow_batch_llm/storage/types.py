"""Column types and the clock, spelled once for SQLite, PostgreSQL, MySQL and MariaDB.

Keys compare by their bytes: MySQL's usual collations ignore case and accents, and PostgreSQL's depend on
the locale, which would merge or misorder ids. MySQL's binary ones still ignore spaces at the end, which no
name that Airflow takes can have.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Double, Integer, String, Text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine


def ascii_key(length: int) -> TypeEngine[str]:
    """Ids of our own making (ASCII), ordered by byte value."""
    # Not of character set ascii on MySQL: a comparison with other text would be refused.
    return name(length).with_variant(postgresql.VARCHAR(length, collation="C"), "postgresql")


def name(length: int = 250) -> TypeEngine[str]:
    """Names given by people (DAG, run, task, connection). 250 is Airflow's own limit."""
    wide = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(wide, "mysql", "mariadb")


def long_text() -> TypeEngine[str]:
    """Text of any size and characters, kept byte for byte.

    MySQL's TEXT ends at 64 KB, and its character set is by default that of the database.
    """
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def serial() -> TypeEngine[int]:
    """A growing number. SQLite counts by itself only in a plain INTEGER key."""
    return BigInteger().with_variant(Integer(), "sqlite")


class clock(FunctionElement[float]):
    """The database's clock in seconds since the epoch, read when the row is written."""

    type = Double()
    inherit_cache = True


@compiles(clock, "sqlite")
def _sqlite_clock(element: clock, compiler: Any, **kw: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42, which Python 3.11 and 3.12 images do not have yet. A Julian
    # day holds milliseconds and a little noise below them.
    return "round((julianday('now') - 2440587.5) * 86400.0, 3)"


@compiles(clock, "postgresql")
def _postgresql_clock(element: clock, compiler: Any, **kw: Any) -> str:
    # now() stands still during a transaction, also while the statement waits for a row lock.
    return "CAST(extract(epoch from clock_timestamp()) AS double precision)"


@compiles(clock, "mysql")
@compiles(clock, "mariadb")
def _mysql_clock(element: clock, compiler: Any, **kw: Any) -> str:
    # UNIX_TIMESTAMP(NOW()) is ambiguous in the hour in which summer time ends.
    return "(timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1e6)"
