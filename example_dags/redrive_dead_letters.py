"""Send the dead letters of one job again, when what killed them is mended. Started by hand."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_batch_llm import BatchLLMRedriveOperator, SqlSink

DOC = """
### Re-drive dead letters

Rows that failed for good are never sent again by the machine. When the cause is mended (a filter
relaxed, a limit raised, a ticket's text corrected at the provider), a person starts this DAG with the
run whose dead letters are to be tried again, and says why. The decision is kept with each dead letter.

Rows that are answered now are added to that run's results and to its table, and their dead letters are
marked *resolved*. Rows that fail again are *open* as before. Rows that have an answer are not sent.
"""

with DAG(
    "redrive_dead_letters",
    description="A person's decision: try the dead letters of one run again",
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    params={
        "dag_id": Param("nightly_ticket_labels", type="string", title="DAG", description="whose run it was"),
        "run_id": Param(
            "",
            type="string",
            minLength=1,
            title="Run",
            description="as the grid view shows it, e.g. manual__…",
        ),
        "task_id": Param(
            "label_tickets.submit", type="string", title="Submitting task", description="group and task id"
        ),
        "table": Param("ticket_labels", type="string", title="Table", description="where its answers land"),
        "reason": Param(
            "", type="string", minLength=1, title="Reason", description="kept with every dead letter"
        ),
    },
    render_template_as_native_obj=False,
    tags=["batch_llm", "example"],
    doc_md=DOC,
) as dag:
    BatchLLMRedriveOperator(
        task_id="redrive",
        llm_conn_id="llm_batch",
        target_dag_id="{{ params.dag_id }}",
        target_run_id="{{ params.run_id }}",
        target_task_id="{{ params.task_id }}",
        reason="{{ params.reason }}",
        sink=SqlSink("warehouse", "{{ params.table }}", key=["id"], create=True),
    )
