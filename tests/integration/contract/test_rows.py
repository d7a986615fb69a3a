"""Rows: each is accounted for under its own id, whatever the protocol makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.contract.wires import MISTRAL, OPENAI, Wire
from tests.job_bench import Bench

Job = Callable[..., Bench]
Told = Callable[..., Any]
TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(8)}
ODD_IDS = (
    "a.b",
    "a_b",
    "é ü/#3",
    "12",
    "k" * 65,
    "x" * 300,
    "line\nbreak",
    '"quoted"',
    "{{ row }}",
    " ",
    "🙂",
)


def test_every_row_is_answered_once_under_its_own_id(
    form: Wire, job: Job, creates: Callable[[Wire], int]
) -> None:
    made = job(form, texts=TEXTS)
    settled = made.run()
    assert settled.counts["rows"] == settled.counts["answered"] == len(TEXTS)
    assert [answer.custom_id for answer in made.answers()] == list(TEXTS)
    for answer in made.answers():
        assert TEXTS[answer.custom_id] in answer.output and answer.finish_reason == "stop"
    assert creates(form) == 1
    made.assert_accounted()


def test_the_same_rows_get_the_same_answers_as_over_openai(wire: Wire, job: Job, over_openai: Told) -> None:
    def tell(over: Wire) -> Any:
        made = job(over, texts=TEXTS)
        made.run()
        return [(a.custom_id, a.output, a.model, a.finish_reason, a.round) for a in made.answers()]

    assert tell(wire) == over_openai("same rows", tell)


def test_rows_that_fail_in_different_ways_mean_the_same_as_over_openai(
    wire: Wire, job: Job, over_openai: Told
) -> None:
    faults = {
        "0": "server_error", "1": "bad_request", "2": "truncated", "3": "content_filter", "4": "refusal",
        "5": "empty", "6": "rate_limited", "7": "context_length_exceeded",
    }  # fmt: skip

    def tell(over: Wire) -> dict[str, Verdict]:
        made = job(over, texts=TEXTS | {"t-8": "ticket number 8."}, policy=RowRetry(max_rounds=0))
        rules = [{"match": {"contains": f"number {n}."}, "fault": fault} for n, fault in faults.items()]
        made.server.set_scenario({"rows": rules})
        made.run()
        assert [answer.custom_id for answer in made.answers()] == ["t-8"]
        made.assert_accounted()
        # A protocol may have no other word for a filter than for a refusal.
        same = {Verdict.FILTERED: Verdict.REFUSED}
        letters = made.letters(LetterState.OPEN)
        return {letter.custom_id: same.get(letter.verdict, letter.verdict) for letter in letters}

    told = tell(wire)
    assert told == over_openai("faults", tell) and len(told) == 8


@pytest.mark.parametrize("mixed", [OPENAI, MISTRAL], ids=lambda wire: wire.name)
def test_rows_that_failed_are_told_from_the_answers_among_which_they_stand(mixed: Wire, job: Job) -> None:
    made = job(mixed, texts=TEXTS)
    rules = [
        {"match": {"contains": "number 3."}, "fault": "server_error", "times": 1},
        {"match": {"contains": "number 7."}, "fault": "bad_request"},
    ]
    made.server.set_scenario({"rows": rules, "results": {"failures_in_output": True, "shuffle": 3}})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (7, 1)
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-7", Verdict.BAD_REQUEST)
    made.assert_accounted()


def test_only_failed_rows_are_sent_again(wire: Wire, job: Job, creates: Callable[[Wire], int]) -> None:
    made = job(wire, texts=TEXTS)
    rules = [
        {"match": {"contains": "number 3."}, "fault": "server_error", "times": 1},
        {"match": {"contains": "number 5."}, "fault": "rate_limited", "times": 2},
        {"match": {"contains": "number 7."}, "fault": "bad_request"},
    ]
    made.server.set_scenario({"rows": rules})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (7, 1)
    assert [batch.requests for batch in made.batches()] == [8, 2, 1] and creates(wire) == 3
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict, letter.exhausted) == ("t-7", Verdict.BAD_REQUEST, False)
    assert letter.message
    made.assert_accounted()


def test_a_batch_in_which_every_row_failed_answers_nobody(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario({"rows": [{"fault": "bad_request"}]})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (0, len(TEXTS))
    assert {letter.verdict for letter in made.letters()} == {Verdict.BAD_REQUEST}
    assert made.server.summary()["charged"] == 0
    made.assert_accounted()


def test_ids_with_any_characters_stay_what_they_are(wire: Wire, job: Job) -> None:
    texts = {custom_id: f"row {n}" for n, custom_id in enumerate(ODD_IDS)}
    made = job(wire, texts=texts)
    made.run()
    assert [answer.custom_id for answer in made.answers()] == list(ODD_IDS)
    made.assert_accounted()


def test_texts_with_any_characters_arrive_as_they_are(wire: Wire, job: Job, over_openai: Told) -> None:
    texts = {
        "quotes": 'say "yes" and \\n',
        "control": "tab\tbell\x07",
        "separators": "a\u2028b\u2029c\x85d",
        "emoji": "🙂🙃 e\u0301",
        "template": "{{ row.secret }} {% raw %}",
        "null": "a\x00b",
    }

    def tell(over: Wire) -> Any:
        made = job(over, texts=texts)
        made.run()
        return {answer.custom_id: answer.output for answer in made.answers()}

    told = tell(wire)
    assert told == over_openai("characters", tell) and len(told) == len(texts)


def test_rows_in_any_order_twice_foreign_and_without_an_id_change_nothing(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario(
        {"results": {"shuffle": 5, "repeat": 2, "foreign": 2, "no_id": 1, "blank_lines": 2}}
    )
    settled = made.run()
    assert settled.counts["answered"] == len(TEXTS)
    assert all(TEXTS[answer.custom_id] in answer.output for answer in made.answers())
    made.assert_accounted()


def test_a_row_that_stands_nowhere_is_missing_and_the_others_land(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS, policy=RowRetry(max_rounds=0))
    made.server.set_scenario({"rows": [{"match": {"contains": "number 4."}, "fault": "missing"}]})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (7, 1)
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-4", Verdict.MISSING)
    made.assert_accounted()


def test_half_a_row_at_the_end_costs_only_itself(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario({"results": {"broken_last_line": True}})
    settled = made.run()
    assert settled.counts["answered"] == len(TEXTS)
    made.assert_accounted()


def test_a_row_of_a_type_that_nobody_knows_is_unknown_and_never_lost(wire: Wire, job: Job) -> None:
    async def decode(engine: Any) -> Any:
        backend = made.backend(made.server)
        lines = [wire.odd_line("w-1"), b"not json", b"[]", b"{}", b"\xff\xfe", b'{"custom_id": 7, "key": 7}']
        return [backend.decode(line) for line in lines]

    made = job(wire)
    odd, *rest = made.call(decode)
    assert (odd.wire_id, odd.verdict) == ("w-1", Verdict.UNKNOWN)
    assert {row.verdict for row in rest} == {Verdict.UNKNOWN} and {row.wire_id for row in rest} == {""}


def test_usage_adds_up_to_what_the_provider_charged(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.run()
    charges = made.server.charges()
    (batch,) = made.batches()
    assert batch.usage.input == sum(charge["input_tokens"] for charge in charges) > 0
    assert batch.usage.output == sum(charge["output_tokens"] for charge in charges) > 0
    assert batch.usage.output == sum(answer.usage["output"] for answer in made.answers())


def test_rows_are_cut_into_batches_that_the_provider_takes(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS, options={"max_requests": 3})
    settled = made.run()
    assert settled.counts["answered"] == len(TEXTS)
    sizes = [batch.requests for batch in made.batches()]
    assert sum(sizes) == len(TEXTS) and max(sizes) <= 3 and len(sizes) >= 3
    made.assert_accounted()


def test_a_row_above_the_limit_dies_alone_before_anything_is_sent_for_it(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS | {"t-3": "x" * 5_000}, options={"max_line_bytes": 2_000})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (7, 1)
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-3", Verdict.TOO_LARGE)
    assert made.server.summary()["executed"] == 7
