"""Keep the vectors of a document corpus up to date, and pay only for chunks that changed.

Needs two connections: ``warehouse`` (where ``documents`` is and ``chunk_vectors`` goes) and ``llm_batch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, BaseHook, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import Reuse, RowPrompt, SqlSink

DOC = """
### Vectors of the handbook

Each night all documents are cut into chunks of about 800 characters, and table `chunk_vectors` is replaced
by one row for each chunk with its vector: pgvector's type where the extension is there, else an array or
JSON. Chunks that were embedded before are taken from earlier runs (`Reuse`), so a night costs what changed.

Readers never see half a corpus: the table's rows change in one transaction, and only if every chunk has a
vector.
"""

CHUNK = 800


def cut(text: str, size: int = CHUNK) -> Iterator[str]:
    """Yield pieces of at most ``size`` characters, cut between paragraphs where there are any."""
    piece = ""
    for paragraph in text.split("\n\n"):
        if piece and len(piece) + len(paragraph) > size:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        while len(piece) > size:
            yield piece[:size]
            piece = piece[size:]
    if piece:
        yield piece


with DAG(
    "handbook_embeddings",
    description="Vectors of all handbook chunks; only changed chunks are paid for",
    schedule=CronDataIntervalTimetable("30 1 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    # The function is called in the worker, once, when the rows are read; they never go through XCom.
    @task.batch_llm_rows(
        llm_conn_id="llm_batch",
        endpoint="embeddings",
        model="text-embedding-3-small",
        prompt=RowPrompt("{{ row.text }}"),
        key=["document_id", "chunk"],
        carry=["text"],
        reuse=Reuse(scope="task"),
        sink=SqlSink(
            "warehouse",
            "chunk_vectors",
            key=["document_id", "chunk"],
            columns={"output": "embedding"},
            mode="replace_partition",
            partition={"corpus": "handbook"},
            create=True,
        ),
    )
    def embed_chunks() -> Iterator[dict[str, Any]]:
        hook = BaseHook.get_hook("warehouse")
        for document_id, body in hook.get_records("SELECT id, body FROM documents ORDER BY id"):
            for number, text in enumerate(cut(body)):
                yield {"document_id": document_id, "chunk": number, "text": text}

    embed_chunks()
