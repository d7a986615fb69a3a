"""MySQL connections through PyMySQL, which installs without a compiler and without client libraries."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.common.sql.hooks.sql import DbApiHook


class PyMySqlHook(DbApiHook):
    """The hook of connections of type ``mysql`` where Airflow's own is not installed, or not wanted.

    Used without ``apache-airflow-providers-mysql``, and with it where the connection's extra says
    ``{"client": "pymysql"}``. Of the extra it reads ``charset`` (default ``utf8mb4``), ``unix_socket``,
    ``ssl`` (a mapping of PyMySQL's ``ca``, ``cert``, ``key`` …), ``init_command`` and ``connect_timeout``
    (seconds).
    """

    conn_name_attr = "mysql_conn_id"
    default_conn_name = "mysql_default"
    conn_type = "mysql"
    supports_autocommit = True

    def get_conn(self) -> Any:
        """Open a connection.

        :raises ImportError: PyMySQL is not installed.
        """
        import pymysql  # type: ignore[import-untyped]

        connection = self.get_connection(self.get_conn_id())
        extra = connection.extra_dejson
        options: dict[str, Any] = {
            name: extra[name]
            for name in ("unix_socket", "init_command", "connect_timeout", "ssl")
            if extra.get(name)
        }
        if isinstance(options.get("ssl"), str):
            options["ssl"] = json.loads(options["ssl"])
        return pymysql.connect(
            host=connection.host or "localhost",
            user=connection.login,
            password=connection.password or "",
            database=connection.schema or None,
            port=int(connection.port or 3306),
            charset=extra.get("charset") or "utf8mb4",
            **options,
        )

    def set_autocommit(self, conn: Any, autocommit: bool) -> None:
        """Switch autocommit; PyMySQL has a method for it, not a property."""
        conn.autocommit(autocommit)

    def get_autocommit(self, conn: Any) -> bool:
        """Say whether autocommit is on."""
        return bool(conn.get_autocommit())
