"""Run the migrations on the connection that ``storage/migrate.py`` hands in, in its transaction.

No ``fileConfig`` here: alembic's template would replace the logging of the process that migrates.
"""

from __future__ import annotations

from alembic import context

from airflow_batch_llm.storage.migrate import VERSION_TABLE
from airflow_batch_llm.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
