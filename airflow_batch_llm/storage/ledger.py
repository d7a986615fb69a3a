"""The ledger: all jobs, batches, dead letters and events in the user's own SQL database.

Every change is a named method with one compare-and-set and its event, in one short transaction:
jobs in ``ledger_jobs.py``, batches in ``ledger_batches.py``, ``ledger_doubts.py`` and
``ledger_decisions.py``, dead letters in ``ledger_letters.py``, held connections in ``ledger_holds.py``,
answers for later jobs in ``ledger_reuse.py``, purges in ``ledger_purge.py``.
"""

from __future__ import annotations

from airflow_batch_llm.storage.ledger_decisions import DecisionTransitions
from airflow_batch_llm.storage.ledger_doubts import DoubtTransitions
from airflow_batch_llm.storage.ledger_holds import HoldTransitions
from airflow_batch_llm.storage.ledger_jobs import JobTransitions
from airflow_batch_llm.storage.ledger_letters import LetterTransitions
from airflow_batch_llm.storage.ledger_purge import PurgeTransitions
from airflow_batch_llm.storage.ledger_reuse import BoughtAnswers


class SqlLedger(
    JobTransitions,
    DoubtTransitions,
    DecisionTransitions,
    LetterTransitions,
    HoldTransitions,
    BoughtAnswers,
    PurgeTransitions,
):
    """The ``Ledger`` of ``core/ledger_port.py`` on SQLite, PostgreSQL, MySQL or MariaDB.

    Opening one does not connect, and does not look at the schema: see ``storage/migrate.py``. Threads
    and forked processes may share it, as no connection outlives a call.

    Every method may raise LedgerUnavailable (the database does not answer) and LedgerSchemaError (its
    tables are not ours).
    """
