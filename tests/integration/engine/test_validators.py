"""Validators and echoed fields in a whole job: what is bought again, what is judged again, what is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.schemas import answer_schema
from tests.canned_provider import CannedProvider
from tests.integration.engine.test_judging_again import judge_again
from tests.job_bench import Bench, drafts_of
from tests.replay_provider import answer, as_lines

TEXTS = {f"t-{n}": f"SECRET ticket number {n}." for n in range(6)}
ANSWER = answer_schema(
    {
        "type": "object",
        "properties": {"ticket": {"type": "string"}, "label": {"type": "string"}},
        "required": ["ticket", "label"],
        "additionalProperties": False,
    }
)
seen: dict[str, dict[str, Any]] = {}


def refuses_odd(output: Any, row: dict[str, Any]) -> str | None:
    seen[row["id"]] = row
    return f"SECRET reason {row['id']}" if int(row["id"][-1]) % 2 else None


def breaks_on_one(output: Any, row: dict[str, Any]) -> None:
    if row["id"] == "t-1":
        raise KeyError(output)


def takes_all(output: Any, row: dict[str, Any]) -> None:
    """Mended."""


def drafts_with_carry() -> list[Draft]:
    return [replace(draft, carry={"lang": f"lang of {draft.custom_id}"}) for draft in drafts_of(TEXTS)]


def test_a_rejected_answer_is_bought_again_and_then_kept_with_its_words(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    seen.clear()
    job = bench(
        texts=TEXTS,
        drafts=drafts_with_carry,
        judge=Judge(validate=refuses_odd),
        policy=RowRetry(max_rounds=1),
    )

    with caplog.at_level(logging.DEBUG):
        done = job.run()

    assert (done.counts["answered"], done.counts["dead"]) == (3, 3)
    assert job.open_letters() == {"t-1": "rejected", "t-3": "rejected", "t-5": "rejected"}
    letters = {letter.custom_id: letter for letter in job.letters(LetterState.OPEN)}
    assert letters["t-1"].message == "SECRET reason t-1" and len(letters["t-1"].attempts) == 2
    assert seen["t-4"] == {"custom_id": "t-4", "id": "t-4", "lang": "lang of t-4"}
    kept = _outcomes(job)
    assert all("ticket number" in outcome["text"] for outcome in kept if outcome["code"] == "rejected")
    assert "SECRET" not in caplog.text
    assert job.creates() == 2


def test_no_answer_is_bought_for_a_validator_that_breaks_and_a_mended_one_judges_again_for_nothing(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    job = bench(texts=TEXTS, judge=Judge(validate=breaks_on_one), policy=RowRetry(max_rounds=3))

    done = job.run()

    assert (done.counts["answered"], job.creates()) == (5, 1), "one row does not stop the others"
    assert job.open_letters() == {"t-1": "validator_failed"}
    assert "1 answers could not be validated, the first of row 't-1'" in caplog.text
    assert "failed with KeyError in line" in caplog.text and "SECRET" not in caplog.text

    mended = replace(job, judge=Judge(validate=takes_all))
    assert judge_again(mended) == 1
    done = mended.until(Until.SETTLED)
    assert (done.counts["answered"], done.counts["dead"]) == (6, 0)
    assert mended.open_letters() == {} and mended.creates() == 1
    mended.assert_accounted()


def test_another_validator_never_demotes_an_answered_row(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, judge=Judge(validate=takes_all))
    job.run()
    stricter = replace(job, judge=Judge(validate=refuses_odd))

    assert judge_again(stricter) == 1

    assert stricter.until(Until.SETTLED).counts["answered"] == 6
    assert {answer.custom_id for answer in stricter.answers()} == set(TEXTS)


def test_an_answer_that_names_another_row_does_not_land(bench: Callable[..., Bench]) -> None:
    """The simulated model makes up the field: it never says the id."""
    template = replace(bench().template, output_schema=ANSWER.json_schema)  # type: ignore[union-attr]
    job = bench(
        texts=TEXTS,
        judge=Judge(ANSWER, None, {"ticket": "id"}),
        policy=RowRetry(max_rounds=0),
        template=template,
    )

    job.run()

    assert job.open_letters() == dict.fromkeys(TEXTS, "echo_mismatch")
    assert job.letters()[0].message == "'ticket' does not repeat column 'id'"
    without = replace(job, judge=Judge(ANSWER))
    judge_again(without)
    assert without.until(Until.SETTLED).counts["answered"] == 6
    assert all(set(answer.output) == {"ticket", "label"} for answer in without.answers())


def test_an_echo_of_a_column_that_is_not_there_stops_the_task_and_loses_nothing(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)

    with pytest.raises(ConfigurationError, match="'nope'"):
        replace(job, judge=Judge(None, None, {"ticket": "nope"})).until(Until.SETTLED)

    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert job.creates() == 1


def test_words_of_any_length_and_script_are_kept_up_to_their_limit(bench: Callable[..., Bench]) -> None:
    said = iter(["x", "שלום 😀 " * 1000, "a\x07\u2028b"])
    provider = CannedProvider([lambda wires: [("output", as_lines(*(answer(w, next(said)) for w in wires)))]])
    job = bench(
        texts={"short": "a", "long": "b", "odd": "c"},
        judge=Judge(validate=never),
        policy=RowRetry(max_rounds=0),
        around_backend=provider.around,
    )

    job.run()

    kept = {outcome["custom_id"]: outcome["text"] for outcome in _outcomes(job)}
    assert kept == {"short": "x", "long": ("שלום 😀 " * 1000)[:2000], "odd": "a\x07\u2028b"}


def never(output: Any, row: dict[str, Any]) -> str:
    return "never"


def _outcomes(job: Bench) -> list[dict[str, Any]]:
    files = job.root.glob("batch/*/outcomes-*.jsonl")
    return [json.loads(line) for file in files for line in file.read_bytes().split(b"\n") if line]
