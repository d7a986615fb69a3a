"""One job as Airflow and its author see it: the tasks that are to run, and what the source holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from airflow_batch_llm.core.drafts import AnswerSchema
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Rerun
from airflow_batch_llm.schemas import answer_schema
from tests.chaos.plans import Plan
from tests.job_bench import CHAT


class Task(StrEnum):
    """The four tasks of a job, and the two that are cleared alone and then do something else."""

    SUBMIT = "submit"
    RECONCILE = "reconcile"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    RETRY_ALONE = "retry, cleared alone"


ALL_TASKS = (Task.SUBMIT, Task.RECONCILE, Task.RETRY, Task.DEAD_LETTER)
FIRST_MARK = 3
DEADLINE_SECONDS = 0.6


@dataclass(frozen=True)
class Reading:
    """What the source and the DAG file said when they were read.

    :param texts: custom_id -> prompt.
    :param schema: version of the output schema, 0 for free text.
    """

    texts: dict[str, str]
    model: str
    schema: int

    @property
    def template(self) -> RequestTemplate:
        schema = schema_of(self.schema)
        return RequestTemplate(
            CHAT,
            self.model,
            {"max_tokens": 100},
            output_schema=schema.json_schema if schema is not None else None,
        )


@dataclass
class JobRun:
    """One job.

    :param mark: Airflow's ``max_tries`` of the submitting task: a clear raises it.
    :param readings: mark -> what was read by the process that pinned that revision's plan first.
    """

    plan: Plan
    run_id: str
    source: Reading
    mark: int = FIRST_MARK
    last_mark: int = FIRST_MARK
    first_try: bool = True
    tasks: list[Task] = field(default_factory=lambda: list(ALL_TASKS))
    rerun: Rerun = Rerun.MISSING
    job_timeout: float | None = None
    judge_version: int = 1
    retry_clears: int = 0
    readings: dict[int, Reading] = field(default_factory=dict)
    fresh_marks: int = 0
    read: int = 0

    def next_reading(self) -> Reading:
        """Return what a process that starts now would read."""
        self.read += 1
        if not self.plan.moving:
            return self.source
        texts = dict(self.source.texts)
        first = next(iter(texts))
        texts[first] += f" As of reading {self.read}."
        texts[f"seen-{self.read}"] = f"Only reading {self.read} has this ticket."
        return replace(self.source, texts=texts)

    @property
    def expected(self) -> Reading | None:
        """What the revision of the last clear was staged from, None where that never came about."""
        return self.readings.get(self.mark)

    def clear(self, *, rerun: Rerun = Rerun.MISSING, job_timeout: float | None = None) -> None:
        """Clear the whole group."""
        self.last_mark += 1
        self.mark, self.first_try = self.last_mark, False
        self.rerun, self.job_timeout = rerun, job_timeout
        self.fresh_marks += rerun is Rerun.FRESH
        self.tasks = list(ALL_TASKS)

    def delete_run(self) -> None:
        """Delete the run and start one with the same id: Airflow begins to count anew."""
        self.mark, self.first_try = FIRST_MARK, True
        self.rerun, self.job_timeout = Rerun.MISSING, None
        self.tasks = list(ALL_TASKS)

    def judge(self) -> Judge:
        """Return the judge of today."""
        if self.plan.strict:
            return Judge(FickleSchema(self.judge_version))
        return Judge(schema_of(self.source.schema))

    def policy(self) -> RowRetry:
        dispositions = {"invalid_output": "dead"} if self.plan.strict else {}
        return RowRetry(max_rounds=self.plan.max_rounds, dispositions=dispositions)


class FickleSchema:
    """Takes any text; in its first version only where the ticket's number is even.

    What it refuses dies: nothing is paid again, and the second version can promote it.
    """

    name = "answer"
    json_schema: dict[str, Any] = {}

    def __init__(self, version: int) -> None:
        self.fingerprint = f"fickle {version}"
        self._version = version

    def parse(self, text: str) -> str:
        if self._version == 1 and any(f"number {odd}." in text for odd in range(1, 60, 2)):
            raise ValueError("odd")
        return text

    read = parse


def schema_of(version: int) -> AnswerSchema | None:
    """Return the output schema of a version, None for 0."""
    if not version:
        return None
    return answer_schema(
        {
            "type": "object",
            "properties": {"label": {"enum": ["ticket", "other"]}, f"note_{version}": {"type": "string"}},
            "required": ["label", f"note_{version}"],
            "additionalProperties": False,
        }
    )


def new_job(plan: Plan, number: int, run_id: str) -> JobRun:
    """Return a job of the plan as it is before anything ran. Only the first one has a deadline."""
    texts = {f"r-{row}": f"Job {number}: ticket number {row}. Which label?" for row in range(plan.rows)}
    timeout = DEADLINE_SECONDS if plan.deadline and number == 0 else None
    return JobRun(plan, run_id, Reading(texts, "m-1", int(plan.structured)), job_timeout=timeout)
