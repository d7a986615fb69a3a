"""A corpus whose vectors are kept up to date: two in a hundred chunks changed since yesterday."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_batch_llm import Reuse, RowPrompt, SqlSink, SqlSource, batch_llm_group
from tests.integration.tasks.desk import Traffic, Warehouse
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

CHUNKS = 10_000
CHANGED = CHUNKS // 50
FIRST = datetime(2026, 3, 1, tzinfo=UTC)

with DAG("corpus", schedule=None, start_date=FIRST) as dag:
    batch_llm_group(
        group_id="embed",
        llm_conn_id="llm_batch",
        endpoint="embeddings",
        model="text-embedding-3-small",
        source=SqlSource("warehouse", "SELECT doc, part, text FROM chunks", key=["doc", "part"]),
        prompt=RowPrompt("{{ row.text }}"),
        params={"dimensions": 64},
        reuse=Reuse(scope="task"),
        sink=SqlSink(
            "warehouse", "vectors", key=["doc", "part"], columns={"output": "embedding"}, create=True
        ),
    )


def vectors(warehouse: Warehouse) -> dict[tuple[int, int], list[float]]:
    rows = warehouse.execute("SELECT doc, part, embedding FROM vectors")
    return {(doc, part): json.loads(vector) for doc, part, vector in rows}


def test_only_what_changed_is_sent_and_the_table_is_right(
    runs: Runs, warehouse: Warehouse, server: LocalServer, traffic: Traffic
) -> None:
    warehouse.execute("CREATE TABLE chunks (doc INTEGER, part INTEGER, text TEXT, PRIMARY KEY (doc, part))")
    with sqlite3.connect(warehouse.path) as db:
        rows = [(n // 10, n % 10, f"Chapter {n}: rule number {n} of the house.") for n in range(CHUNKS)]
        db.executemany("INSERT INTO chunks VALUES (?, ?, ?)", rows)
    db.close()
    assert runs.run(dag).state == "success"
    before = vectors(warehouse)
    assert len(before) == CHUNKS == traffic.sent

    changed = (
        f"UPDATE chunks SET text = text || ' Amended.' WHERE (doc * 10 + part) % {CHUNKS // CHANGED} = 0"
    )
    warehouse.execute(changed)
    traffic.forget()
    assert runs.run(dag).state == "success"
    assert traffic.sent == CHANGED
    after = vectors(warehouse)
    assert set(after) == set(before)
    differing = {place for place in after if after[place] != before[place]}
    assert differing == {(n // 10, n % 10) for n in range(0, CHUNKS, CHUNKS // CHANGED)}
