"""What is said of a halted job: the code, and which errors of which batches are behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_batch_llm.exceptions import JobHalted
from airflow_batch_llm.operators.halted import refuse_halted
from tests.unit.operators.conftest import Desk

ROW = [("a prompt", "")]


def test_a_job_that_is_not_halted_passes(desk: Callable[..., Desk]) -> None:
    made = desk(ROW)
    refuse_halted(made.ledger, made.job)


def test_a_halted_job_names_the_error_of_its_batches(desk: Callable[..., Desk]) -> None:
    made = desk(ROW, ROW)
    for batch in made.batches():
        made.fail_batch(batch, "model_not_found")
    last = made.batches()[-1].batch_id
    with pytest.raises(JobHalted) as caught:
        refuse_halted(made.ledger, made.halted("BLLM-023"))
    assert f"is halted (BLLM-023: model_not_found in batch {last})." in str(caught.value)


def test_at_most_three_errors_are_named_the_newest_first(desk: Callable[..., Desk]) -> None:
    made = desk(*[ROW] * 5)
    for batch in made.batches():
        made.fail_batch(batch, f"code_{batch.seq}")
    with pytest.raises(JobHalted) as caught:
        refuse_halted(made.ledger, made.halted("BLLM-023"))
    told = str(caught.value)
    assert told.index("code_4") < told.index("code_3") < told.index("code_2")
    assert "code_1" not in told


def test_what_is_no_code_is_not_repeated(desk: Callable[..., Desk]) -> None:
    made = desk(ROW)
    made.fail_batch(made.batches()[0], "Jane Doe is no model")
    with pytest.raises(JobHalted) as caught:
        refuse_halted(made.ledger, made.halted("BLLM-023"))
    assert "is halted (BLLM-023)." in str(caught.value) and "Jane" not in str(caught.value)
