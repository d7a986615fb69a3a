"""D17: a result file as ``vllm run-batch`` writes it, played by a provider: all rows in the one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import Replay, ReplayProvider, answer, as_lines

IDS = [f"r-{n}" for n in range(1, 5)]
TEXTS = {custom_id: f"say {n}" for n, custom_id in enumerate(IDS, start=1)}
DONE = {"output_file_id": "file-out", "error_file_id": None, "request_counts": None}


def request_file(write: Callable[[bytes], Path]) -> Path:
    """The case's input: four requests, of which the file answers three."""
    lines = (
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m-1", "messages": [{"role": "user", "content": text}]},
        }
        for custom_id, text in TEXTS.items()
    )
    return write(as_lines(*lines))


def playing(output: bytes) -> Replay:
    return Replay(DONE, {"file-out": output}, TEXTS)


def test_d17_failures_in_the_one_file_are_failures_and_a_row_that_is_nowhere_is_missing(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
) -> None:
    server = provider(playing((case("D17").folder / "output.jsonl").read_bytes()))
    bench = job(server, request_file(write))
    bench.run()
    assert {a.custom_id: (a.round, a.output) for a in bench.answers()} == {
        "r-1": (0, "A1"),
        "r-3": (1, "answered"),
        "r-4": (1, "answered"),
    }
    (letter,) = bench.letters(LetterState.OPEN)
    assert (letter.custom_id, letter.verdict, letter.code) == (
        "r-2",
        Verdict.BAD_REQUEST,
        "BadRequestError",
    )
    assert letter.message == "prompt is too long" and not letter.exhausted
    assert server.sent()[1:] == [["say 3", "say 4"]]
    assert bench.batches()[0].counts == {"ok": 1, "bad_request": 1, "server_error": 1, "missing": 1}
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(b"", id="an empty file"),
        pytest.param(b"\n \r\n", id="blank lines"),
        pytest.param(
            as_lines({"id": "vllm-9", "custom_id": "never-sent", "response": None}), id="other rows"
        ),
    ],
)
def test_d17_that_it_ended_well_is_never_success(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    output: bytes,
) -> None:
    server = provider(playing(output))
    bench = job(server, request_file(write), policy=RowRetry(max_rounds=0))
    settled = bench.run()
    assert settled.state is JobState.SETTLED and settled.counts["answered"] == 0
    assert bench.open_letters() == dict.fromkeys(IDS, "missing")
    bench.assert_accounted(IDS)


def vllm_error(code: int, type_: str) -> dict[str, Any]:
    return {"object": "error", "message": "some words", "type": type_, "param": None, "code": code}


RETRIED, DEAD, OK = "sent again", "dead", "answered"
GOOD = answer("r-2")["response"]["body"]


@pytest.mark.parametrize(
    ("row", "fate"),
    [
        ({"response": {"status_code": 400, "request_id": "vb"}, "error": "words and no object"}, DEAD),
        ({"response": None, "error": vllm_error(400, "BadRequestError")}, DEAD),
        ({"response": None, "error": {"error": vllm_error(400, "BadRequestError")}}, DEAD),
        ({"response": {"status_code": 404}, "error": vllm_error(404, "NotFoundError")}, DEAD),
        ({"response": {"status_code": 500}, "error": vllm_error(500, "InternalServerError")}, RETRIED),
        ({"response": {"status_code": 503}, "error": None}, RETRIED),
        ({"response": {"status_code": 429}, "error": vllm_error(429, "RateLimitError")}, RETRIED),
        ({"response": None, "error": "the engine is dead"}, RETRIED),
        ({"error": "the engine is dead"}, RETRIED),
        ({"response": {"request_id": "vb"}, "error": "the engine is dead"}, RETRIED),
        ({"response": {}, "error": {"message": "the engine is dead"}}, RETRIED),
        ({"response": {"status_code": 200, "request_id": "vb"}, "error": None}, RETRIED),
        ({"error": {"code": "runner_lost"}}, RETRIED),
        ({"error": {"code": "batch_expired"}}, RETRIED),
        ({"error": {"code": "batch_failed", "message": "x"}}, RETRIED),
        ({"response": {"status_code": 200, "body": GOOD}}, OK),
        ({"response": {"status_code": 200, "body": json.dumps(GOOD)}}, OK),
        ({"response": {"status_code": "200", "body": GOOD}, "error": {"code": None}}, OK),
        ({"response": GOOD, "error": None}, OK),
        ({"recordId": "r-2", "modelOutput": {"content": [{"text": "A2"}]}}, DEAD),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_d17_each_self_hosted_way_to_write_a_row_has_its_fate(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    row: dict[str, Any],
    fate: str,
) -> None:
    others = [answer(custom_id, "good") for custom_id in ("r-4", "r-1", "r-3")]
    named = row if "recordId" in row else {"id": "vllm-2", "custom_id": "r-2", **row}
    output = as_lines(*others[:2], named, others[2])
    server = provider(playing(output))
    bench = job(server, request_file(write))
    bench.run()
    answered = {a.custom_id for a in bench.answers() if a.round == 0}
    assert answered == set(IDS) - (set() if fate == OK else {"r-2"})
    assert server.sent()[1:] == ([["say 2"]] if fate == RETRIED else [])
    assert list(bench.open_letters()) == (["r-2"] if fate == DEAD else [])
    bench.assert_accounted(IDS)


def test_d17_a_code_that_is_said_to_be_a_fault_of_the_account_halts_the_job(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    others = [answer(custom_id, "good") for custom_id in ("r-4", "r-1", "r-3")]
    row = {"custom_id": "r-2", "response": None, "error": {"code": "No_Tokens_Left", "message": "some words"}}
    server = provider(playing(as_lines(row, *others)))
    policy = RowRetry(dispositions={"code:no_tokens_left": "halt"})
    bench = job(server, request_file(write), policy=policy)
    halted = bench.run()
    assert halted.state is JobState.HALTED and halted.halt_code == "BLLM-021"
    assert sorted(a.custom_id for a in bench.answers()) == ["r-1", "r-3", "r-4"]
    assert bench.letters() == [] and bench.creates() == 1
    bench.ledger.resume_job(bench.job(), actor="ann", reason="there are tokens again")
    assert bench.run().counts["answered"] == 4
    assert server.sent()[1:] == [["say 2"]]
    bench.assert_accounted(IDS)
