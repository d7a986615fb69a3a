"""What a job promises when rows fail, over real HTTP and on both ledgers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import text

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import BatchState, JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}" for n in range(10)}


def test_every_row_lands_and_is_charged_once(bench: Callable[..., Bench], any_ledger: SqlLedger) -> None:
    b = bench(texts=TEXTS, ledger=any_ledger, options={"max_requests": 4})
    job = b.run()
    assert job.state is JobState.SETTLED
    assert job.counts["rows"] == job.counts["answered"] == 10
    assert b.server.summary()["charged"] == 10
    assert [x.custom_id for x in b.answers()] == list(TEXTS)
    assert b.creates() == 3
    assert {x.state for x in b.batches()} == {BatchState.RECONCILED}
    b.assert_accounted()


def test_failed_rows_are_sent_again_and_only_they(bench: Callable[..., Bench], any_ledger: SqlLedger) -> None:
    b = bench(texts=TEXTS, ledger=any_ledger)
    b.server.set_scenario(
        {
            "rows": [
                {"match": {"contains": "number 3"}, "fault": "server_error", "times": 1},
                {"match": {"contains": "number 5"}, "fault": "rate_limited", "times": 2},
                {"match": {"contains": "number 7"}, "fault": "bad_request", "code": "invalid_value"},
                {"match": {"contains": "number 8"}, "fault": "missing", "times": 1},
            ],
            "results": {"shuffle": 3, "foreign": 2, "repeat": 1, "no_id": 1, "blank_lines": 2},
        }
    )
    job = b.run()
    assert job.counts["answered"] == 9 and job.counts["dead"] == 1
    assert job.counts["answered_round_0"] == 6 and job.counts["answered_later"] == 3
    assert b.open_letters() == {"t-7": "invalid_value"}
    assert [x.requests for x in b.batches()] == [10, 3, 1]
    assert b.creates() == 3
    b.assert_accounted()
    (letter,) = b.letters()
    assert [(a.round, a.verdict, a.code) for a in letter.attempts] == [(0, "bad_request", "invalid_value")]
    assert letter.message and not letter.exhausted


def test_a_row_that_never_works_dies_when_its_attempts_are_used_up(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_rounds=2))
    b.server.set_scenario({"rows": [{"match": {"contains": "number 3"}, "fault": "server_error"}]})
    b.run()
    (letter,) = b.letters(LetterState.OPEN)
    assert letter.custom_id == "t-3" and letter.exhausted
    assert [a.round for a in letter.attempts] == [0, 1, 2]
    assert b.creates() == 3
    b.assert_accounted()


def test_what_an_expired_batch_answered_lands_and_the_rest_is_sent_again(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    b.server.set_scenario({"batches": [{"fault": "expire", "after": 0.4, "times": 1}]})
    job = b.run()
    assert job.counts["answered"] == 10
    assert [x.requests for x in b.batches()] == [10, 6]
    assert b.server.summary()["charged"] == 10
    b.assert_accounted()


def test_a_full_queue_charges_no_row_and_waits(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    b.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    job = b.run()
    assert job.counts["answered"] == 10 and job.round == 0
    (batch,) = b.batches()
    assert batch.attempt == 3
    assert b.letters() == []
    b.assert_accounted()


def test_a_truncated_answer_is_retried_with_more_tokens(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS)
    b.server.set_scenario({"rows": [{"match": {"contains": "number 3"}, "fault": "truncated", "times": 1}]})
    job = b.run()
    assert job.counts["answered"] == 10
    assert [dict(x.overrides) for x in b.batches()] == [{}, {"max_tokens": 200}]


def test_a_truncated_answer_without_a_limit_to_raise_dies_at_once(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_tokens_factor=1))
    b.server.set_scenario({"rows": [{"match": {"contains": "number 3"}, "fault": "truncated"}]})
    b.run()
    assert list(b.open_letters()) == ["t-3"]
    assert b.creates() == 1


def test_one_bad_line_that_the_provider_names_is_cut_out(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    rule = {"fault": "fail_validation", "times": 1, "line": 4, "code": "invalid_json_line"}
    b.server.set_scenario({"batches": [rule]})
    job = b.run()
    assert job.counts["answered"] == 9
    assert b.open_letters() == {"t-3": "invalid_json_line"}
    b.assert_accounted()


def test_a_refused_batch_that_names_no_line_is_cut_in_two(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    b.server.set_scenario({"batches": [{"fault": "fail_validation", "times": 1, "code": "invalid_request"}]})
    job = b.run()
    assert job.counts["answered"] == 10
    assert [x.requests for x in b.batches()] == [10, 5, 5]
    b.assert_accounted()


def test_all_rows_dead_is_told_apart_from_success(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS)
    b.server.set_scenario({"rows": [{"fault": "bad_request", "code": "invalid_value"}]})
    job = b.run()
    assert job.counts["answered"] == 0 and job.counts["dead"] == 10
    assert b.answers() == []
    b.assert_accounted()


def test_an_empty_source_settles_with_nothing(bench: Callable[..., Bench]) -> None:
    b = bench(texts={})
    job = b.run()
    assert job.state is JobState.SETTLED and job.counts["rows"] == 0
    assert b.creates() == 0


def test_dead_letters_are_re_driven_as_a_further_round(
    bench: Callable[..., Bench], any_ledger: SqlLedger
) -> None:
    b = bench(texts=TEXTS, ledger=any_ledger)
    faults = [
        {"match": {"contains": "number 3"}, "fault": "bad_request", "code": "invalid_value"},
        {"match": {"contains": "number 4"}, "fault": "content_filter"},
    ]
    b.server.set_scenario({"rows": faults})
    b.run()
    assert sorted(b.open_letters()) == ["t-3", "t-4"]
    b.server.set_scenario({"rows": faults[1:]})

    def redrive(mark: str) -> int:
        planned: int = b.call(lambda e: e.redrive(actor="ann", reason="limit was wrong", mark=mark))
        b.until(Until.SETTLED)
        return planned

    assert redrive("first") == 2
    assert redrive("first") == 0, "a retry of the re-drive sends nothing"
    assert list(b.open_letters()) == ["t-4"]
    assert [x.custom_id for x in b.letters(LetterState.RESOLVED)] == ["t-3"]
    (letter,) = b.letters(LetterState.OPEN)
    assert [a.round for a in letter.attempts] == [0, 1]
    assert len(b.answers()) == 9
    assert [x.requests for x in b.batches()] == [10, 2]
    assert any(e.actor == "ann" and "limit was wrong" in e.reason for e in b.ledger.events(b.key.job_id))
    b.assert_accounted()
    assert redrive("second") == 1
    b.assert_accounted()


def test_a_late_re_drive_has_time_of_its_own(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, job_timeout=600.0)
    b.server.set_scenario({"rows": [{"match": {"contains": "number 3"}, "fault": "content_filter"}]})
    b.run()
    b.server.set_scenario({})
    engine = b.ledger.engine
    with engine.begin() as connection:
        connection.execute(text("UPDATE batch_llm_job SET deadline_at = 1"))
    b.call(lambda e: e.redrive(actor="ann", reason="filter relaxed", mark="x", job_timeout=600.0))
    job = b.until(Until.SETTLED)
    assert job.state is JobState.SETTLED and job.counts["answered"] == 10


def test_a_letter_whose_row_a_new_judge_answered_is_resolved_and_not_sent(
    bench: Callable[..., Bench],
) -> None:
    strict = answer_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    b = bench(texts=TEXTS, judge=Judge(strict), policy=RowRetry(max_rounds=0))
    b.run()
    assert len(b.open_letters()) == 10
    lenient = replace(b, judge=Judge())
    assert lenient.call(lambda e: e.rejudge()) == 1
    assert lenient.call(lambda e: e.redrive(actor="ann", reason="why not", mark="x")) == 0
    lenient.until(Until.SETTLED)
    assert lenient.open_letters() == {} and len(lenient.answers()) == 10
    assert b.creates() == 1
    lenient.assert_accounted()
