"""Whatever changes from revision to revision and from night to night: no request is answered twice for money,
and every row has the answer to its own text."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Rerun, Until
from tests.job_bench import Bench

#: What the provider does to a text: nothing, one fault that passes, or one that does not.
_FAULTS = (None, None, None, "server_error", "bad_request")


@dataclass(frozen=True)
class Reading:
    """One reading of the source. ``rows``: row -> text, in their order.

    :param another_night: a new job of the same task; else a clear.
    :param in_flight: the next reading comes while its batches are still running.
    """

    rows: dict[int, int]
    faults: tuple[str | None, ...]
    rerun: Rerun
    another_night: bool
    in_flight: bool


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    order = draw(st.permutations(range(6)))
    kept = order[: draw(st.integers(1, 6))]
    return Reading(
        {row: draw(st.integers(0, 3)) for row in kept},
        tuple(draw(st.sampled_from(_FAULTS)) for _ in range(4)),
        draw(st.sampled_from([Rerun.MISSING, Rerun.FAILED])),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def scenario(reading: Reading, name: Callable[[int], str]) -> dict[str, object]:
    rules = [
        {"match": {"contains": name(text)}, "fault": fault, "times": 1 if fault == "server_error" else None}
        for text, fault in enumerate(reading.faults)
        if fault is not None
    ]
    return {"rows": rules, "pace": {"seconds": 600, "hold_at": 0.5} if reading.in_flight else {}}


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(readings(), min_size=2, max_size=4))
def test_no_request_is_answered_twice_for_money(bench: Callable[..., Bench], plan: list[Reading]) -> None:
    tag = secrets.token_hex(4)

    def name(text: int) -> str:
        return f"{tag} text {text}."

    job = bench(
        task_id=f"{tag}.submit",
        reuse=Reuse("task"),
        policy=RowRetry(max_rounds=2),
        options={"max_requests": 2},
    )
    charges_before = len(job.server.charges())
    unfinished = False
    for number, reading in enumerate(plan):
        texts = {f"row-{row}": name(text) for row, text in reading.rows.items()}
        if number and reading.another_night and not unfinished:
            run_id = f"{job.run_id}+"
            job = replace(
                job, run_id=run_id, mark=3, first_try=True, reads=0, texts=texts, rerun=reading.rerun
            )
        elif number:
            job = job.clear(texts=texts, rerun=reading.rerun)
        else:
            job = replace(job, texts=texts)
        job.server.set_scenario(scenario(reading, name))
        job.step(Until.ENDED, submitting=True)
        unfinished = reading.in_flight and number < len(plan) - 1
        if unfinished:
            continue
        job.server.set_scenario({**scenario(reading, name), "pace": {}})
        job.server.release()
        done = job.settle()
        assert done.state is JobState.SETTLED
        assert done.counts["rows"] == len(texts) == done.counts["answered"] + done.counts["dead"]
        job.assert_accounted()
        assert all(job.texts[a.custom_id] in a.output for a in job.answers())
        assert {a.key["id"] for a in job.answers()} == {a.custom_id for a in job.answers()}
    answered = Counter(
        charge["body_sha256"]
        for charge in job.server.charges()[charges_before:]
        if charge["charged"] and charge["fault"] is None
    )
    assert max(answered.values(), default=1) == 1
