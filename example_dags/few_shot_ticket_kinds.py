"""Sort last night's support tickets by examples, as even a very small model of one's own can do it.

Needs the connections of ``nightly_ticket_labels``. `make demo MODEL=local` runs it with Gemma 3 270M, which
``batch-llm serve --local-model`` answers with: no key, no account, no GPU.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group

DOC = """
### Ticket kinds by examples

Each night at 02:00 UTC the tickets of the past 24 hours get one of five kinds (`labels.TicketKind`), written
to table `ticket_kinds`. A small base model has learned to continue texts, not to follow instructions: what it
is to do is shown by eight examples rather than told.
"""

TICKETS = """
    SELECT id, body
    FROM tickets
    WHERE updated_at >= :since AND updated_at < :until
"""

# Sent before every ticket, as turns of a conversation. None of them is a ticket of the table.
EXAMPLES = [
    {
        "user": "I was charged twice for the January plan. Please refund one of them.",
        "assistant": {"kind": "billing"},
    },
    {"user": "Comment changer la langue des reçus pour les clients ?", "assistant": {"kind": "question"}},
    {
        "user": "Der Drucker druckt seit heute früh nichts mehr, Kabel getauscht.",
        "assistant": {"kind": "problem"},
    },
    {"user": "レジのアプリが開きません。どうすればいいですか。", "assistant": {"kind": "problem"}},
    {"user": "Quiero cancelar mi cuenta a fin de mes.", "assistant": {"kind": "cancellation"}},
    {
        "user": "How do I change the tax rate for take-away at the moment of sale?",
        "assistant": {"kind": "question"},
    },
    {"user": "omg just wanted to say the new tip screen is SO good", "assistant": {"kind": "praise"}},
    {
        "user": "The reader keeps saying pairing lost about every twenty minutes.",
        "assistant": {"kind": "problem"},
    },
]

with DAG(
    "few_shot_ticket_kinds",
    description="Support tickets sorted into five kinds, by examples",
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    batch_llm_group(
        group_id="sort_tickets",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            TICKETS,
            parameters={"since": "{{ data_interval_start | ts }}", "until": "{{ data_interval_end | ts }}"},
            key=["id"],
        ),
        prompt=RowPrompt(
            "{{ row.body }}",
            system="Sort support tickets of a firm that makes tills for small shops.",
            examples=EXAMPLES,
        ),
        model="gemma3-270m",
        output_schema="labels:TicketKind",
        max_tokens=20,
        row_retry=RowRetry(max_rounds=3),
        sink=SqlSink("warehouse", "ticket_kinds", key=["id"], create=True),
        on_empty="skip",
        max_dead_letter_ratio=0.1,
    )
