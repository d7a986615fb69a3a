"""Tables and columns that a migration makes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

from airflow_batch_llm.exceptions import LedgerSchemaError


def new_table(name: str, *columns: sa.Column[Any]) -> None:
    """Create the table.

    MySQL commits each table as it is made: a migration that was cut leaves tables that no version speaks
    of yet. They go, as long as nothing is in them.

    :raises LedgerSchemaError: such a table holds rows.
    """
    bind = op.get_bind()
    if bind.dialect.name in ("mysql", "mariadb"):
        schema = _schema(bind)
        if sa.inspect(bind).has_table(name, schema=schema):
            if bind.execute(sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)).first():
                raise LedgerSchemaError(
                    f"The table {name} holds rows, but no version of the ledger is noted beside it: "
                    "restore the table batch_llm_version as well, or take another database."
                )
            op.drop_table(name)
    op.create_table(name, *columns)


def new_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column that may be empty.

    MySQL commits each one as it is added: a migration that was cut finds what it has added already.
    """
    bind = op.get_bind()
    if bind.dialect.name in ("mysql", "mariadb"):
        known = {found["name"] for found in sa.inspect(bind).get_columns(table, schema=_schema(bind))}
        if column.name in known:
            return
    # Alembic writes this statement itself: the schema is not put into its place as it is for a new table.
    op.add_column(table, column, schema=_schema(bind))


def widen_column(table: str, column: str, kind: TypeEngine[str]) -> None:
    """Let a column of text hold more. SQLite looks at no length."""
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.alter_column(table, column, type_=kind, existing_nullable=True, schema=_schema(bind))


def drop_column(table: str, column: str) -> None:
    """Drop a column."""
    op.drop_column(table, column, schema=_schema(op.get_bind()))


def _schema(bind: sa.Connection) -> str | None:
    schemas = bind.get_execution_options().get("schema_translate_map") or {}
    return schemas.get(None)
