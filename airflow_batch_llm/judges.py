"""The judge of a job, from what a DAG file or a plan's ``job.json`` says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_batch_llm.core.drafts import AnswerSchema
from airflow_batch_llm.core.judge import CUSTOM_ID, Judge
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.import_paths import load_callable
from airflow_batch_llm.schemas import answer_schema, described_schema


def make_judge(
    output_schema: Any = None,
    validate: Any = None,
    echo: Mapping[str, str] | None = None,
    *,
    columns: Collection[str] | None = None,
) -> Judge:
    """Return the judge that arguments of a task ask for.

    :param output_schema: as :func:`airflow_batch_llm.schemas.answer_schema` takes it.
    :param validate: function ``(output, row)`` or its import path.
    :param echo: field of the answer -> column that it must repeat.
    :param columns: the key and carried columns of the source, where they are known: ``echo`` is held
        against them.
    :raises OutputSchemaError: the schema cannot be used.
    :raises ConfigurationError: the function cannot be imported or does not take two arguments, or ``echo``
        names a field that the schema does not have or a column that is not kept.
    """
    return _judge(answer_schema(output_schema), validate, echo, columns)


def described_judge(described: Mapping[str, Any]) -> Judge:
    """Return the judge that a plan's ``job.json`` names.

    :raises ConfigurationError: its validator cannot be imported here. Nothing takes its place: without it,
        answers would land that it rejects.
    """
    return _judge(described_schema(described), described.get("validate"), described.get("echo"), None)


def _judge(
    schema: AnswerSchema | None,
    validate: Any,
    echo: Mapping[str, str] | None,
    columns: Collection[str] | None,
) -> Judge:
    function = load_callable(validate, "validate", arguments=2) if validate is not None else None
    return Judge(schema, function, _checked_echo(echo, schema, columns))


def _checked_echo(
    echo: Mapping[str, str] | None, schema: AnswerSchema | None, columns: Collection[str] | None
) -> dict[str, str]:
    found = dict(echo or {})
    if not found:
        return found
    if schema is None:
        raise ConfigurationError("echo names fields of the answer, so it needs an output_schema")
    fields = schema.json_schema.get("properties") or {}
    for name, column in found.items():
        if not isinstance(name, str) or not isinstance(column, str):
            raise ConfigurationError("echo is a mapping {field of the answer: column}, both of them text")
        if fields and name not in fields:
            raise ConfigurationError(
                f"echo names the field {name!r}, which the output schema does not have; it has: "
                f"{', '.join(map(str, fields))}"
            )
        if columns is not None and column != CUSTOM_ID and column not in columns:
            raise ConfigurationError(
                f"echo names column {column!r}, which is neither in key nor in carry; there are: "
                f"{', '.join([CUSTOM_ID, *columns])}"
            )
    return found
