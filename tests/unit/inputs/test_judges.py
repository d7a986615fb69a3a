"""The judge that a DAG file, or a plan's job.json, asks for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from airflow_batch_llm.exceptions import ConfigurationError, OutputSchemaError
from airflow_batch_llm.judges import described_judge, make_judge


class Label(BaseModel):
    ticket: int
    label: str


def check(output: Any, row: dict[str, Any]) -> None:
    """Has nothing to say."""


def test_arguments_and_their_description_make_the_same_judge() -> None:
    given = make_judge(Label, check, {"ticket": "id"}, columns=["id"])
    described = described_judge(
        {
            "template": {"output_schema": Label.model_json_schema()},
            "output_schema": f"{__name__}:Label",
            "validate": f"{__name__}:check",
            "echo": {"ticket": "id"},
        }
    )

    assert given.fingerprint == described.fingerprint
    assert make_judge().fingerprint == described_judge({"template": {"output_schema": None}}).fingerprint


def test_a_validator_that_cannot_be_imported_is_never_left_out() -> None:
    described = {"template": {"output_schema": None}, "validate": "nowhere_at_all:check"}

    with pytest.raises(ConfigurationError, match="validate: cannot import module 'nowhere_at_all'"):
        described_judge(described)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"echo": {"ticket": "id"}}, "needs an output_schema"),
        ({"output_schema": Label, "echo": {"tickt": "id"}}, "'tickt'.*it has: ticket, label"),
        ({"output_schema": Label, "echo": {"ticket": "idd"}}, "'idd'.*there are: custom_id, id"),
        ({"output_schema": Label, "echo": {"ticket": 5}}, "both of them text"),
        ({"validate": "no-colon"}, "not an import path"),
    ],
)
def test_a_judge_that_cannot_work_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_judge(**arguments, columns=["id"])


def test_a_schema_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(OutputSchemaError):
        make_judge("nowhere_at_all:Label")
