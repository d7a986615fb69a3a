"""D04: the batch failed in validation, and the provider names lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState, LetterState, Usage
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import InputError
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import Replay, ReplayProvider, as_lines

IDS = [f"row/{n}" for n in range(1, 6)]
TEXTS = {custom_id: f"say {n}" for n, custom_id in enumerate(IDS, start=1)}


def request_file(write: Callable[[bytes], Path]) -> Path:
    """Five good requests: what our own check takes and a provider may still refuse."""
    return write(
        as_lines(
            *(
                {
                    "custom_id": custom_id,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {"model": "m-1", "messages": [{"role": "user", "content": text}]},
                }
                for custom_id, text in TEXTS.items()
            )
        )
    )


def failed(errors: Any, **changes: Any) -> Replay:
    """A batch that failed with these errors."""
    nothing = {"output_file_id": None, "error_file_id": None}
    return Replay({"status": "failed", "errors": errors, **nothing, **changes}, texts=TEXTS)


def error(line: Any, code: str = "invalid_json_line", **members: Any) -> dict[str, Any]:
    return {"code": code, "line": line, "message": f"about {line}", "param": None, **members}


def refused_rows(bench: Bench) -> str:
    (told,) = [e.reason for e in bench.ledger.events(bench.key.job_id) if e.action == "lines_refused"]
    return told


def test_d04_our_own_check_refuses_the_file_before_any_call(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    server = provider()
    with pytest.raises(InputError) as told:
        job(server, case("D04").input).run()
    assert server.calls == []
    assert "line 2" in str(told.value)


def test_d04_the_repeated_id_is_refused_before_any_call_too(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
) -> None:
    lines = case("D04").lines("input.jsonl")
    server = provider()
    with pytest.raises(InputError, match="line 2: repeats the custom_id of line 1"):
        job(server, write(lines[0] + b"\n" + lines[2] + b"\n")).run()
    assert server.calls == []


def test_d04_the_error_names_both_lines_and_the_rows_they_came_from(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
) -> None:
    server = provider(failed(case("D04").batch()["errors"]))
    bench = job(server, request_file(write))
    settled = bench.run()
    assert settled.state is JobState.SETTLED
    assert refused_rows(bench) == (
        "line 2 ('row/2'): invalid_json_line; line 3 ('row/3'): duplicate_custom_id"
    )
    letters = {x.custom_id: x for x in bench.letters(LetterState.OPEN)}
    assert {custom_id: (x.verdict, x.code, x.message) for custom_id, x in letters.items()} == {
        "row/2": (
            Verdict.BAD_REQUEST,
            "invalid_json_line",
            "line 2: This line is not parseable as valid JSON.",
        ),
        "row/3": (Verdict.BAD_REQUEST, "duplicate_custom_id", "line 3: custom_id repeats"),
    }
    # Not blindly: the lines at fault are cut out, nobody else is charged, nothing is made up.
    assert server.sent() == [[f"say {n}" for n in range(1, 6)], ["say 1", "say 4", "say 5"]]
    assert {a.custom_id: a.output for a in bench.answers()} == dict.fromkeys(
        ["row/1", "row/4", "row/5"], "answered"
    )
    first = bench.batches()[0]
    assert first.counts == {Verdict.BAD_REQUEST: 2, Verdict.CANCELLED: 3} and first.usage == Usage()
    bench.assert_accounted(IDS)


def test_d04_lines_count_from_the_start_of_their_own_batch(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    server = provider(failed([error(2)]), replays=2)
    bench = job(server, request_file(write), options={"max_requests": 3})
    bench.run()
    assert sorted(bench.open_letters()) == ["row/2", "row/5"]
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    ("errors", "dead", "uploads"),
    [
        pytest.param([error(5)], {"row/5": "invalid_json_line"}, 2, id="only the first bad line is named"),
        pytest.param([error("4")], {"row/4": "invalid_json_line"}, 2, id="the line as text"),
        pytest.param(
            {"object": "list", "data": [error(1), error(1, "missing_required_parameter")]},
            {"row/1": "invalid_json_line"},
            2,
            id="one line named twice",
        ),
        pytest.param(
            [error(n, "streaming_unsupported", param="body.stream") for n in range(1, 6)],
            dict.fromkeys(IDS, "streaming_unsupported"),
            1,
            id="every line is named",
        ),
        pytest.param(
            [error(2), error(None)], {"row/2": "invalid_json_line"}, 2, id="a second error of no line"
        ),
        pytest.param([error(2), error(99)], {"row/2": "invalid_json_line"}, 2, id="a line that is not there"),
        # Nobody says which: halves are tried, never the same file again.
        pytest.param([error(99)], {}, 3, id="only a line that is not there"),
        pytest.param([error(0)], {}, 3, id="line 0"),
        pytest.param([error(-1)], {}, 3, id="a negative line"),
        pytest.param([error(None)], {}, 3, id="no line"),
        pytest.param([], {}, 3, id="no errors"),
        pytest.param(None, {}, 3, id="errors null"),
        pytest.param([error(None, "too_many_tasks")], {}, 3, id="Azure: more requests than it takes"),
    ],
)
def test_d04_whatever_is_named_no_row_is_lost_and_no_file_is_sent_twice(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    errors: Any,
    dead: dict[str, str],
    uploads: int,
) -> None:
    server = provider(failed(errors))
    bench = job(server, request_file(write))
    bench.run()
    assert bench.open_letters() == dead
    assert len(server.uploads) == uploads
    assert len({tuple(texts) for texts in server.sent()}) == len(server.uploads)
    assert all(x.attempts[-1].input == x.attempts[-1].output == 0 for x in bench.letters())
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    ("errors", "dead"),
    [([error(2)], {"row/2": "invalid_json_line"}), ([error(None, "internal")], {})],
    ids=["line named", "no line named"],
)
def test_d04_a_gateway_that_writes_a_row_for_each_says_no_more_than_one_that_writes_none(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    errors: Any,
    dead: dict[str, str],
) -> None:
    """llm-d: every request of a failed batch ends in the error file with ``batch_failed``."""
    rows = as_lines(*({"custom_id": custom_id, "error": {"code": "batch_failed"}} for custom_id in IDS))
    replay = failed(errors, error_file_id="file-err")
    server = provider(Replay(replay.batch, {"file-err": rows}, TEXTS))
    bench = job(server, request_file(write))
    bench.run()
    assert bench.open_letters() == dead
    assert len({tuple(texts) for texts in server.sent()}) == len(server.uploads)
    assert json.dumps(server.sent()[1:]).count("say") == 5 - len(dead)
    bench.assert_accounted(IDS)
