"""Label last night's support tickets with an LLM, at batch price, with every ticket accounted for.

Needs two connections: ``warehouse`` (where ``tickets`` is and ``ticket_labels`` goes) and ``llm_batch``
(type "LLM batch API", or any server that speaks OpenAI's batch protocol).
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_batch_llm import RowPrompt, RowRetry, SqlSink, SqlSource, batch_llm_group

DOC = """
### Nightly ticket labels

Each night at 02:00 UTC the tickets of the past 24 hours get a category, an urgency, a language, a flag
"needs a human" and a one-line summary (`labels.TicketLabel`), written to table `ticket_labels`.

* **submit** reads the tickets once, sends them as batch jobs and waits in the triggerer, without a worker.
* **reconcile** joins every answer to its ticket by id.
* **retry** sends what has no answer again, three times at most.
* **dead_letter** lands the answers, puts what still failed into the dead-letter table, and is green only
  if answered + dead = sent and less than a tenth is dead.

**If it is red:** the log of `dead_letter` says which codes. Mend the cause, then start the DAG
`redrive_dead_letters` with this DAG's id and the run's id: only the dead tickets are sent again.

**To label a night again** (after a change to the prompt, say): clear the whole group.
Unchanged tickets are not sent or paid for again.
"""

# Named parameters are written in the driver's own way: `:since` on SQLite, `%(since)s` on PostgreSQL.
TICKETS = """
    SELECT id, customer, channel, body
    FROM tickets
    WHERE updated_at >= :since AND updated_at < :until
"""

# Rendered for every row when the task runs, in a sandbox. Airflow's own templating never sees it.
PROMPT = """
Label this support ticket, received by {{ row.channel }}.

{{ row.body }}
"""

with DAG(
    "nightly_ticket_labels",
    description="LLM labels for the support tickets of the past night",
    # In Airflow 3 "@daily" is a point in time. This timetable gives each run the 24 hours before it.
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=3,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    batch_llm_group(
        group_id="label_tickets",
        llm_conn_id="llm_batch",
        source=SqlSource(
            "warehouse",
            TICKETS,
            parameters={"since": "{{ data_interval_start | ts }}", "until": "{{ data_interval_end | ts }}"},
            key=["id"],
        ),
        prompt=RowPrompt(PROMPT, system="You label tickets of a firm that makes tills for small shops."),
        model="gpt-5-mini",
        output_schema="labels:TicketLabel",
        max_tokens=200,
        # A cut or unreadable answer is asked for again with more room, or from the larger model.
        row_retry=RowRetry(max_rounds=3, escalate_to="gpt-5"),
        sink=SqlSink("warehouse", "ticket_labels", key=["id"], create=True),
        on_empty="skip",
        max_dead_letter_ratio=0.1,
    )
