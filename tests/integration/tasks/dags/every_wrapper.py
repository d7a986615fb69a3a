"""Every kind of wrapper that a DAG file can hold, for the test of their serialization."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from airflow.sdk import DAG, task, task_group
from pydantic import BaseModel

from airflow_batch_llm import (
    BatchLLMOperator,
    BatchLLMRedriveOperator,
    BatchLLMSubmitOperator,
    FileSource,
    Image,
    OpenAIBatchFile,
    ResultsSource,
    Retention,
    Reuse,
    RowPrompt,
    RowRetry,
    RowsSource,
    SqlSink,
    SqlSource,
    batch_llm_group,
)


class Label(BaseModel):
    """An output schema that the DAG file itself defines."""

    label: str


def check_label(output: dict[str, Any], row: dict[str, Any]) -> str | None:
    """A validator that the DAG file itself defines."""
    return None if output["label"] else "no label"


def without_names(row: dict[str, Any]) -> dict[str, Any]:
    """A redaction that the DAG file itself defines."""
    return {**row, "name": ""}


with DAG("every_wrapper", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

    @task
    def fetch() -> list[dict[str, Any]]:
        return [{"id": 1, "body": "one"}]

    batch_llm_group(
        group_id="sql",
        source=SqlSource(
            "warehouse",
            "SELECT id, part, body FROM t WHERE day >= :day AND cost > :cost",
            parameters={
                "day": "{{ ds }}",
                "cost": Decimal("1.50"),
                "since": datetime(2026, 1, 1, tzinfo=UTC),
            },
            key=["id", "part"],
        ),
        prompt=RowPrompt("{{ row.body }} {{ day }}", system="Be brief.", vars={"day": "{{ ds }}"}),
        output_schema=Label,
        params={"temperature": 0, "stop": ["a", "b"]},
        row_retry=RowRetry(
            max_rounds=2, escalate_to="m-2", dispositions={"refused": "retry", "empty": "dead"}
        ),
        sink=SqlSink("warehouse", "out", key={"id": "ticket", "part": "part"}, columns={"label": "word"}),
        task_args={"retry_delay": timedelta(minutes=1)},
    )
    batch_llm_group(
        group_id="file",
        source=FileSource("s3://bucket/{{ ds }}/in.csv.gz", key="id", conn_id="aws"),
        prompt=RowPrompt(path="prompts/label.txt"),
        output_schema="labels:TicketLabel",
        sink=SqlSink("warehouse", "out2", key=["_custom_id"], create=True),
    )
    batch_llm_group(group_id="native", source=OpenAIBatchFile("/data/{{ ds }}/requests.jsonl"))
    batch_llm_group(
        group_id="upstream",
        source=RowsSource(fetch(), key="id"),
        prompt=RowPrompt(
            messages=[{"role": "user", "content": [{"type": "text", "text": "{{ row.body }}"}]}]
        ),
        output_schema={"type": "object", "properties": {"label": {"type": "string"}}},
    )
    batch_llm_group(
        group_id="listed",
        source=[{"id": n, "body": f"row {n}"} for n in range(20)],
        key="id",
        prompt=RowPrompt("{{ row.body }}"),
        deferrable=False,
        job_key="listed",
    )
    batch_llm_group(
        group_id="asking",
        source=FileSource("/data/in.jsonl", key="id"),
        prompt=RowPrompt(
            "{{ row.body }}",
            examples=[{"row": {"body": "a"}, "assistant": {"label": "b"}}],
            history="talk",
            images=["{{ row.url }}", Image(path="photos/{{ row.name }}", within="photos/{{ ds }}")],
            tools=[{"type": "function", "function": {"name": "find"}}],
        ),
        output_schema=Label,
        validate=check_label,
        echo={"label": "custom_id"},
    )
    batch_llm_group(
        group_id="bodies",
        source=FileSource("/data/in.jsonl", key="id"),
        prompt=RowPrompt(body={"input": "{{ row.body }}", "dimensions": 3}),
        endpoint="embeddings",
        validate="labels:check_vector",
    )
    BatchLLMSubmitOperator.partial(
        task_id="mapped",
        source=FileSource("/data/in.jsonl", key="id"),
        prompt=RowPrompt("{{ row.body }}"),
        output_schema=Label,
        row_retry=RowRetry(max_rounds=1),
        sink=SqlSink("warehouse", "out3", key=["id"]),
    ).expand(model=["m-1", "m-2"])
    BatchLLMOperator(
        task_id="one",
        source=FileSource("/data/in.jsonl", key="id"),
        prompt=RowPrompt("{{ row.body }}"),
        output_schema=Label,
        validate=check_label,
        redact=without_names,
        reuse=Reuse(scope="connection", max_age=timedelta(days=90), version="2"),
        retention=Retention(workspace=timedelta(days=30)),
        results_formats=["jsonl", "parquet"],
        carry=["day"],
        samples=2,
        min_rows=10,
    )
    BatchLLMOperator.partial(
        task_id="mapped_one",
        source=[{"id": n, "body": f"row {n}"} for n in range(20)],
        key="id",
        prompt=RowPrompt("{{ row.body }} {{ word }}", vars={"word": fetch()}),
        validate=check_label,
        redact=without_names,
        params={"temperature": 0},
    ).expand_kwargs([{"model": "m-1", "job_key": "one"}, {"model": "m-2", "job_key": "two"}])
    BatchLLMOperator.partial(task_id="mapped_sources", prompt=RowPrompt("{{ row.body }}"), key="id").expand(
        source=[[{"id": n, "body": f"row {n}"}] for n in (19, 20)]
    )

    @task.batch_llm_rows(key="id", prompt=RowPrompt("{{ row.body }}"), validate=check_label)
    def made(number: int, word: Any = None) -> Any:
        return [{"id": number, "body": "row 19"}]

    made(1, word=fetch())
    made.override(task_id="mapped_made", redact=without_names).expand(number=[1, 2])

    @task_group
    def case(model: Any, path: Any, heat: Any) -> None:
        asked = batch_llm_group(
            group_id="ask",
            source=FileSource(path, key="id"),
            prompt=RowPrompt("{{ row.body }} {{ m }}", vars={"m": model}),
            model=model,
            params={"temperature": heat},
            sink=SqlSink("warehouse", model, key="id"),
            job_key=model,
        )
        batch_llm_group(
            group_id="judge", source=ResultsSource(asked.results), prompt=RowPrompt("{{ row.output }}")
        )

    case.expand(model=fetch(), path=["/data/a.jsonl", "/data/b.jsonl"], heat=[0, 0.5])
    BatchLLMRedriveOperator(
        task_id="redrive",
        target_dag_id="every_wrapper",
        target_run_id="{{ params.run }}",
        target_task_id="sql.submit",
        codes=["server_error"],
        row_retry=RowRetry(max_rounds=0),
    )
