"""What a job was asked for, which its later tasks need: schema, validator, endpoint, carried columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.judges import make_judge
from airflow_batch_llm.schemas import answer_schema, described_schema

if TYPE_CHECKING:
    from airflow_batch_llm.core.drafts import AnswerSchema, ResultsFormat
    from airflow_batch_llm.core.judge import Judge
    from airflow_batch_llm.declared import Context
    from airflow_batch_llm.sinks.sql import SqlSink

#: What ``results_formats`` can name; JSON lines are always there.
RESULTS_FORMATS = ("jsonl", "parquet")


@dataclass(frozen=True)
class Asking:
    """How a job was submitted.

    :param endpoint: path of the requests' endpoint.
    :param carry: carried columns.
    :param description: the plan's ``job.json``; empty in the submitting task, which is told everything.
    """

    endpoint: str = CHAT
    carry: tuple[str, ...] = ()
    description: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Asking:
        """Read it from a plan's ``job.json``."""
        return cls(
            endpoint=description["template"]["endpoint"],
            carry=tuple(description.get("carry") or ()),
            description=description,
        )

    def schema(self, given: Any) -> AnswerSchema | None:
        """Return the schema given, or else the one that was submitted."""
        if given is None and self.description:
            return described_schema(self.description)
        return answer_schema(given)

    def judge(
        self,
        output_schema: Any,
        validate: Any,
        echo: Mapping[str, str] | None,
        columns: Collection[str] | None = None,
    ) -> Judge:
        """Return the judge of the job's answers: what is given, or else what was submitted.

        :param columns: key and carried columns of the source, where they are known.
        """
        described = self.description
        return make_judge(
            self.schema(output_schema),
            validate if validate is not None else described.get("validate"),
            echo if echo is not None else described.get("echo"),
            columns=columns,
        )

    def sink(
        self,
        declared: SqlSink | None,
        context: Context,
        schema: AnswerSchema | None,
        source_key: Sequence[str] | None = None,
    ) -> Any:
        """Return the sink, resolved; None where there is none.

        :param source_key: the source's key columns, where they are known.
        """
        if declared is None:
            return None
        return declared.resolve(context, schema, source_key, endpoint=self.endpoint, carry=self.carry)


def further_formats(formats: Sequence[str], schema: AnswerSchema | None) -> tuple[ResultsFormat, ...]:
    """Return the forms in which the answers are published beside JSON lines."""
    if set(formats) == {"jsonl"}:
        return ()
    from airflow_batch_llm.results.parquet import results_formats

    return results_formats(formats, schema)
