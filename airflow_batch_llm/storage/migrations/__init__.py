"""Alembic's scripts for the ledger. Run by ``storage/migrate.py``, never by alembic's own command."""
