"""What only Anthropic leaves open: where a request is refused that holds what its version takes no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.contract.wires import ANTHROPIC, Wire
from tests.job_bench import Bench

Job = Callable[..., Bench]
CITED = {"type": "text", "text": "ticket 3", "citations": [{"type": "char_location"}]}


def drafts() -> list[Draft]:
    """Native bodies, the third with citations of the user, which the newest version refuses."""

    def body(place: int) -> dict[str, Any]:
        said = [CITED] if place == 3 else f"ticket {place}"
        return {"model": "m-1", "max_tokens": 50, "messages": [{"role": "user", "content": said}]}

    return [
        Draft(line=place, custom_id=f"t-{place}", body=body(place), row={"id": place}, key={"id": place})
        for place in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("refused", "made_of"), [("in_row", 1), ("at_create", 2), ("at_create_unnamed", None)]
)
def test_a_request_that_the_version_refuses_dies_alone_wherever_that_is_told(
    refused: str, made_of: int | None, job: Job, creates: Callable[[Wire], int]
) -> None:
    template = ANTHROPIC.template(native=True, params={})
    made = job(ANTHROPIC, drafts=drafts, template=template, policy=RowRetry(max_rounds=0))
    made.server.set_scenario({"anthropic": {"params_refused": refused}})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (5, 1)
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-3", Verdict.BAD_REQUEST)
    assert made_of in (None, creates(ANTHROPIC))
    made.assert_accounted([f"t-{place}" for place in range(1, 7)])
