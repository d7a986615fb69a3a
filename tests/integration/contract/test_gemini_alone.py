"""What only the Gemini API does: its own bodies hold the output limit a level below the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.model import JobState
from tests.integration.contract.wires import GEMINI, GEMINI_INLINE, Wire
from tests.job_bench import Bench

Job = Callable[..., Bench]


def _drafts(settings: dict[str, Any]) -> Callable[[], list[Draft]]:
    return lambda: [
        Draft(
            line=place,
            custom_id=f"t-{place}",
            body={"contents": [{"role": "user", "parts": [{"text": f"ticket {place}."}]}], **settings},
            row={"id": place},
            key={"id": place},
        )
        for place in range(1, 4)
    ]


@pytest.mark.parametrize("wire", [GEMINI, GEMINI_INLINE], ids=lambda wire: wire.name)
@pytest.mark.parametrize(
    ("own", "again"),
    [
        ({}, {"generationConfig": {"maxOutputTokens": 200}}),
        (
            {"generationConfig": {"temperature": 0.5, "maxOutputTokens": 100}},
            {"generationConfig": {"temperature": 0.5, "maxOutputTokens": 200}},
        ),
    ],
    ids=["no limit named", "a limit named"],
)
def test_a_body_of_its_own_that_was_cut_off_is_sent_again_with_a_larger_limit(
    wire: Wire, own: dict[str, Any], again: dict[str, Any], job: Job
) -> None:
    made = job(wire, drafts=_drafts(own), template=wire.template(native=True))
    made.server.set_scenario(
        {"rows": [{"match": {"contains": "ticket 2."}, "fault": "truncated", "times": 1}]}
    )
    settled = made.run()
    assert (settled.state, settled.counts["answered"]) == (JobState.SETTLED, 3)
    first, second = made.batches()
    assert [first.requests, second.requests] == [3, 1]
    (line,) = (made.root / second.path).read_bytes().splitlines()
    body = json.loads(line)["body"]
    assert {name: value for name, value in body.items() if name not in ("contents", "model")} == again
    made.assert_accounted(["t-1", "t-2", "t-3"])
