"""Commands run on real ledgers; no test here needs Airflow's own database."""

from __future__ import annotations

from tests.integration.storage.conftest import (
    address,
    airflow_db,
    ledger,
    migrated_postgres,
    migrated_sqlite,
    postgres_server,
    postgres_url,
)

__all__ = [
    "address",
    "airflow_db",
    "ledger",
    "migrated_postgres",
    "migrated_sqlite",
    "postgres_server",
    "postgres_url",
]
