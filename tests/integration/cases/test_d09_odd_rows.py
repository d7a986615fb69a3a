"""D09: what a row says stands in its status and body, not in ``error``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, answer, as_lines, failure, unexecuted

IDS = [f"r-{n}" for n in range(1, 8)]


def row(response: Any, error: Any = None) -> dict[str, Any]:
    """A row of r-1 with a response and an error of any kind."""
    return {"id": "batch_req", "custom_id": "r-1", "response": response, "error": error}


def status(code: Any, body: Any) -> dict[str, Any]:
    return row({"status_code": code, "request_id": "rq", "body": body})


def test_d09_one_row_is_ok_five_are_sent_again_and_one_dies(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d09 = case("D09")
    server = provider(d09.replay())
    bench = job(server, d09.input)
    bench.run()
    assert server.sent() == [
        [f"say {n}" for n in range(1, 8)],
        ["say 1", "say 2", "say 3", "say 4", "say 6"],
    ]
    assert {a.custom_id: a.output for a in bench.answers() if a.round == 0} == {"r-7": "A7"}
    assert {a.custom_id for a in bench.answers() if a.round == 1} == {"r-1", "r-2", "r-3", "r-4", "r-6"}
    (letter,) = bench.letters(LetterState.OPEN)
    assert (letter.custom_id, letter.code) == ("r-5", "context_length_exceeded")
    assert letter.message == "too long" and not letter.exhausted
    assert bench.batches()[0].counts == {
        Verdict.SERVER_ERROR: 2,
        Verdict.EMPTY: 1,
        Verdict.RATE_LIMITED: 1,
        Verdict.TOO_LARGE: 1,
        Verdict.TIMEOUT: 1,
        Verdict.OK: 1,
    }
    bench.assert_accounted(IDS)


RETRIED = "sent again"
DEAD = "dead"


@pytest.mark.parametrize(
    ("odd", "fate"),
    [
        pytest.param(status(503, {}), RETRIED, id="503 without a body"),
        pytest.param(status(502, "<html>bad gateway</html>"), RETRIED, id="502 with HTML"),
        pytest.param(status("429", {"error": {"message": "slow"}}), RETRIED, id="status as text"),
        pytest.param(status(408, None), RETRIED, id="408 without a body"),
        pytest.param(status(500, {"error": "engine is dead"}), RETRIED, id="error as text"),
        pytest.param(status(200, {"error": {"code": "server_error"}}), RETRIED, id="200 that is a failure"),
        pytest.param(status(200, None), RETRIED, id="200 without a body"),
        pytest.param(status(200, {"choices": []}), RETRIED, id="200 without a choice"),
        pytest.param(status(418, {"error": {"code": "new_code"}}), DEAD, id="unknown 4xx"),
        pytest.param(status(599, {"error": {"code": "new_code"}}), RETRIED, id="unknown 5xx"),
        pytest.param(status(404, {"error": {"code": "model_not_found"}}), DEAD, id="no such model"),
        pytest.param(status(200, {"choices": "many"}), DEAD, id="a body of another kind"),
        pytest.param(unexecuted("r-1", "request_timeout"), RETRIED, id="never ran"),
        pytest.param(unexecuted("r-1", "code_of_tomorrow"), DEAD, id="never ran, unknown code"),
        pytest.param(row(None, "engine is dead"), RETRIED, id="error as text, no response"),
        pytest.param(row({}, {"code": "server_error"}), RETRIED, id="empty response"),
        pytest.param(row(None, None), DEAD, id="neither response nor error"),
    ],
)
def test_d09_each_way_to_fail_has_its_fate_and_touches_no_other_row(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    odd: dict[str, Any],
    fate: str,
) -> None:
    others = [answer(custom_id, "good") for custom_id in IDS[1:]]
    d09 = case("D09")
    files = {"file-out": as_lines(*others[:3], odd, *others[3:]), "file-err": b""}
    server = provider(d09.replay(files=files))
    bench = job(server, d09.input)
    settled = bench.run()
    assert settled.state is JobState.SETTLED
    assert {a.custom_id for a in bench.answers() if a.round == 0} == set(IDS[1:])
    assert server.sent()[1:] == ([["say 1"]] if fate == RETRIED else [])
    assert [x.custom_id for x in bench.letters()] == ([] if fate == RETRIED else ["r-1"])
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    "odd",
    [
        b"not json at all",
        b'{"custom_id":"r-1","response":{"status_code":200,"bo',
        b"[]",
        b"null",
        b"42",
        b'"text"',
        b"{}",
        b'{"custom_id":null,"response":null,"error":null}',
        b'{"custom_id":7,"response":{"status_code":200}}',
        b'{"custom_id":"somebody-elses","response":{"status_code":200,"body":{}}}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        json.dumps(failure("never-sent", 400, {"message": "x"})).encode(),
    ],
    ids=lambda line: line[:24].decode("ascii", "replace"),
)
def test_d09_a_line_that_says_nothing_of_any_row_stops_no_other(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    odd: bytes,
) -> None:
    lines = [as_lines(answer(custom_id, "good")) + odd + b"\n" for custom_id in IDS[1:]]
    d09 = case("D09")
    server = provider(d09.replay(files={"file-out": odd + b"\n" + b"".join(lines), "file-err": b""}))
    bench = job(server, d09.input)
    bench.run()
    assert {a.custom_id for a in bench.answers() if a.round == 0} == set(IDS[1:])
    # r-1 has no row: it is missing, and is asked again.
    assert server.sent()[1:] == [["say 1"]]
    bench.assert_accounted(IDS)
