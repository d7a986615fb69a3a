"""Extract fields from scanned invoices into a typed table, and reject what cannot be right.

Needs two connections: ``warehouse`` (where ``scans`` is and ``invoices`` goes) and ``llm_batch``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import Reuse, RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group

DOC = """
### Invoice fields from scans

The text of each scan goes out with a pydantic schema (`invoices.Invoice`). An answer lands only if

* it fits the schema,
* it repeats the invoice number that the archive knows for the scan (`echo`): an answer that belongs to
  another row never lands,
* net and tax add up to the total (`validate`).

What fails is asked for again, from the larger model, twice; then it is a dead letter with its reason and the
text that was rejected: `batch-llm dead-letters show`.
"""

PROMPT = """
Extract the fields of this invoice.

{{ row.text }}
"""

with DAG(
    "invoice_extraction",
    description="Typed fields of scanned invoices",
    schedule=CronDataIntervalTimetable("0 4 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    batch_llm_group(
        group_id="extract",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            "SELECT scan_id, archive_no, text FROM scans WHERE scanned_on = :day",
            parameters={"day": "{{ ds }}"},
            key="scan_id",
        ),
        prompt=RowPrompt(PROMPT),
        model="gpt-5-mini",
        output_schema="invoices:Invoice",
        validate="invoices:totals_add_up",
        echo={"invoice_no": "archive_no"},
        carry=["archive_no"],
        max_tokens=300,
        reuse=Reuse(scope="task"),
        row_retry=RowRetry(max_rounds=2, escalate_to="gpt-5"),
        sink=SqlSink(
            "warehouse",
            "invoices",
            key="scan_id",
            columns=["invoice_no", "supplier", "issued_on", "currency", "net", "tax", "total"],
            create=True,
        ),
        max_dead_letter_ratio=0.2,
        min_rows=1,
        on_empty="skip",
    )
