"""What a retention says is due, and what it may be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_batch_llm import Retention
from airflow_batch_llm.core.retention import Part, due_parts
from airflow_batch_llm.exceptions import ConfigurationError

DAY = 86400.0


@pytest.mark.parametrize("value", [timedelta(-1), 30, "30d"])
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="Retention: raw"):
        Retention(raw=value)


@pytest.mark.parametrize(
    ("age", "due"),
    [
        (6 * DAY, {Part.PROVIDER_FILES}),
        (7 * DAY, {Part.PROVIDER_FILES, Part.RAW}),
        (29 * DAY, {Part.PROVIDER_FILES, Part.RAW}),
        (30 * DAY, {Part.PROVIDER_FILES, Part.RAW, Part.WORKSPACE}),
        (3000 * DAY, {Part.PROVIDER_FILES, Part.RAW, Part.WORKSPACE}),
    ],
)
def test_each_part_is_due_at_its_own_age_and_none_is_never(age: float, due: set[Part]) -> None:
    retention = Retention(
        raw=timedelta(days=7), workspace=timedelta(days=30), provider_files=timedelta(0), dead_letters=None
    )
    assert due_parts(retention.serialize(), age) == due


def test_a_job_without_retention_is_never_due() -> None:
    assert due_parts(None, 1e12) == due_parts(Retention().serialize(), 1e12) == set()


def test_a_retention_is_written_the_same_in_every_process() -> None:
    assert Retention(raw=timedelta(hours=1)).serialize() == {
        "workspace": None,
        "raw": 3600.0,
        "dead_letters": None,
        "provider_files": None,
    }
