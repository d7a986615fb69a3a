"""What becomes of the rows of a batch where a person decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_batch_llm.core.files import encode_line
from airflow_batch_llm.core.judging import outcomes_file
from airflow_batch_llm.core.ledger_port import Reconciled
from airflow_batch_llm.core.model import Batch, Outcome
from airflow_batch_llm.core.ports import Workspace


def write_outcomes(workspace: Workspace, root: str, batch: Batch, outcomes: Iterable[Outcome]) -> Reconciled:
    """Write a batch's outcomes as a person decided them; returns what goes into the ledger."""
    counts: Counter[str] = Counter()
    with outcomes_file(workspace, root, batch) as out:
        for outcome in outcomes:
            out.write(encode_line(outcome))
            counts[outcome.verdict.value] += 1
    return Reconciled(out.sha256, batch.judge or "by_hand", counts, batch.usage, batch.files)
