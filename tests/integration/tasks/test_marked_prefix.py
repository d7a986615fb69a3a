"""``cache_prefix`` of a task reaches the provider's cache, and changes nothing else."""

from __future__ import annotations

import pytest

from airflow_batch_llm import RowPrompt
from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import Books, Warehouse
from tests.integration.tasks.runs import Runs
from tests.integration.tasks.test_one_task import TASK, one_task_dag
from tests.local_server import LocalServer


def test_a_marked_prefix_is_read_from_the_cache_and_the_table_is_the_same(
    runs: Runs, server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_llm(
        monkeypatch, server, host=server.url_of("anthropic"), extra={"dialect": "anthropic", "model": "m-1"}
    )
    prompt = RowPrompt("Label this ticket: {{ row.body }}", system="You label tickets, one word for each.")
    seen = []
    for marked in (True, False):
        values = {"prompt": prompt, "max_tokens": 100, "cache_prefix": marked}
        run = runs.run(one_task_dag(f"marked_{marked}", **values))
        assert run.state == "success"
        (batch,) = open_ledger().batches(Books.of(run, TASK).job_id)
        seen.append((warehouse.labels(), batch.usage.input))
        assert (batch.usage.cached > 0, batch.usage.cache_write > 0) == (marked, marked)
    assert seen[0] == seen[1]
