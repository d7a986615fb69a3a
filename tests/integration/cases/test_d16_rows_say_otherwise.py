"""D16: the job says SUCCEEDED, and its rows say otherwise (Gemini)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_batch_llm.core.model import JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.integration.cases.gemini_replay import GeminiReplay
from tests.job_bench import Bench
from tests.replay_provider import as_lines

TEXTS = {f"r-{n}": f"say {n}" for n in range(1, 4)}


@pytest.fixture
def rows(write: Callable[[bytes], Path]) -> Path:
    """The case's requests as rows of a source."""
    return write(as_lines(*({"id": key, "prompt": text} for key, text in TEXTS.items())))


def test_d16_a_row_error_in_either_form_has_its_fate_and_the_good_row_lands(
    case: Callable[[str], Case], job: Callable[..., Bench], rows: Path
) -> None:
    recorded = (case("D16").folder / "gemini.jsonl").read_bytes()
    with GeminiReplay(recorded, TEXTS) as server:
        bench = job(server, rows=rows, provider="gemini")
        bench.run()
        assert {a.custom_id: (a.round, a.output) for a in bench.answers()} == {
            "r-3": (0, "A3"),
            "r-2": (1, "answered"),
        }
        (letter,) = bench.letters(LetterState.OPEN)
        assert (letter.custom_id, letter.verdict) == ("r-1", Verdict.BAD_REQUEST)
        assert (letter.code, letter.message) == ("INVALID_ARGUMENT", "invalid argument")
        assert server.sent() == [["say 1", "say 2", "say 3"], ["say 2"]]
        assert bench.batches()[0].counts == {"ok": 1, "bad_request": 1, "rate_limited": 1}
        bench.assert_accounted(list(TEXTS))


def test_d16_a_job_without_a_good_row_has_no_answer_whatever_it_says_of_itself(
    case: Callable[[str], Case], job: Callable[..., Bench], rows: Path
) -> None:
    bad, busy, _ = case("D16").lines("gemini.jsonl")
    recorded = b"\n".join([bad, busy, busy.replace(b"r-2", b"r-3"), b""])
    with GeminiReplay(recorded, TEXTS) as server:
        bench = job(server, rows=rows, provider="gemini", policy=RowRetry(max_rounds=0))
        settled = bench.run()
        assert settled.state is JobState.SETTLED
        assert (settled.counts["answered"], settled.counts["dead"]) == (0, 3)
        assert set(bench.open_letters()) == set(TEXTS)
        bench.assert_accounted(list(TEXTS))
