"""D03: the batch expired; one row was answered and paid for before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, answer, as_lines, unexecuted


def test_d03_the_paid_row_lands_and_only_the_others_are_sent_again(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d03 = case("D03")
    server = provider(d03.replay())
    bench = job(server, d03.input)
    settled = bench.run()
    assert server.sent() == [["say 1", "say 2", "say 3"], ["say 1", "say 3"]]
    assert {a.custom_id: (a.output, a.round) for a in bench.answers()} == {
        "r-1": ("answered", 1),
        "r-2": ("A2", 0),
        "r-3": ("answered", 1),
    }
    assert settled.counts["answered"] == 3 and bench.letters() == []
    bench.assert_accounted(["r-1", "r-2", "r-3"])


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        pytest.param({"error_file_id": ""}, [], id="no error file"),
        pytest.param({"error_file_id": None, "request_counts": None}, [], id="no error file, no counts"),
        pytest.param({}, [unexecuted("r-3", "batch_expired")], id="a row is in neither file"),
        pytest.param(
            {"request_counts": {"total": 3, "completed": 3, "failed": 0}},
            [unexecuted("r-3", "batch_expired"), unexecuted("r-1", "batch_expired")],
            id="counts that say everything went well",
        ),
        pytest.param(
            {"status": "Expired"},
            [unexecuted(f"r-{n}", "batch_expired") for n in (3, 2, 1)],
            id="the paid row is also reported as expired",
        ),
    ],
)
def test_d03_counts_and_error_rows_are_not_believed_over_an_answer(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    changes: dict[str, Any],
    errors: list[dict[str, Any]],
) -> None:
    d03 = case("D03")
    server = provider(d03.replay(files={"file-err": as_lines(*errors)}, **changes))
    bench = job(server, d03.input)
    bench.run()
    assert server.sent()[1:] == [["say 1", "say 3"]]
    assert {a.custom_id for a in bench.answers()} == {"r-1", "r-2", "r-3"}
    bench.assert_accounted(["r-1", "r-2", "r-3"])


def test_d03_expiry_charges_the_rows_no_attempt(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d03 = case("D03")
    server = provider(d03.replay())
    bench = job(server, d03.input, policy=RowRetry(max_rounds=0))
    bench.run()
    assert {a.custom_id for a in bench.answers()} == {"r-1", "r-2", "r-3"}
    assert bench.batches()[0].counts == {Verdict.OK: 1, Verdict.EXPIRED: 2}


def test_d03_what_was_paid_lands_from_a_failed_batch_too(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d03 = case("D03")
    paid = as_lines(answer("r-2", "A2"))
    server = provider(d03.replay(status="failed", files={"file-out": paid, "file-err": b""}))
    bench = job(server, d03.input)
    bench.run()
    assert {a.custom_id: a.output for a in bench.answers()}["r-2"] == "A2"
    assert all("say 2" not in texts for texts in server.sent()[1:])
    bench.assert_accounted(["r-1", "r-2", "r-3"])
