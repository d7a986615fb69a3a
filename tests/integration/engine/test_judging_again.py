"""Judging again promotes rows and never demotes one; what is read is what the ledger names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import WorkspaceError
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.processes import Suspended
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}


@dataclass(frozen=True)
class Matching:
    """A schema that takes texts in which a pattern is found; the answer is what was found."""

    pattern: str
    json_schema: Mapping[str, Any] = field(default_factory=dict)
    name: str = "matching"

    @property
    def fingerprint(self) -> str:
        return f"matching {self.pattern}"

    def parse(self, text: str) -> Any:
        found = re.search(self.pattern, text)
        if found is None:
            raise ValueError(f"no {self.pattern}")
        return {"found": found[0]}

    read = parse


LOW = Judge(Matching(r"number [0-3]\."))
ALL = Judge(Matching(r"number \d\."))
HIGH = Judge(Matching(r"number [3-5]\."))


@pytest.fixture
def judged(bench: Callable[..., Bench]) -> Bench:
    """A settled job in which the judge refused two rows."""
    job = bench(texts=TEXTS, judge=LOW, policy=RowRetry(max_rounds=0))
    job.run()
    assert sorted(job.open_letters()) == ["t-4", "t-5"]
    return job


def judge_again(job: Bench) -> int:
    """What the reconcile task does when it is cleared alone."""
    job.until(Until.RECONCILED)
    judged: int = job.call(lambda engine: engine.rejudge())
    return judged


def test_a_wider_judge_promotes_rows_and_pays_nothing(judged: Bench) -> None:
    wider = replace(judged, judge=ALL)
    assert judge_again(wider) == 1
    assert len(wider.answers()) == 4, "answers are published by settling only"
    done = wider.until(Until.SETTLED)
    assert done.counts["answered"] == 6 and done.counts["dead"] == 0
    assert {a.custom_id: a.output["found"] for a in wider.answers()} == {
        f"t-{n}": f"number {n}." for n in range(6)
    }
    assert [x.custom_id for x in wider.letters(LetterState.RESOLVED)] == [
        x.custom_id for x in wider.letters()
    ]
    assert wider.creates() == 1
    wider.assert_accounted()


def test_another_judge_never_demotes_an_answered_row(judged: Bench) -> None:
    other = replace(judged, judge=HIGH)
    assert judge_again(other) == 1
    assert judge_again(other) == 0, "the same judge has nothing to say twice"
    done = other.until(Until.SETTLED)
    assert done.counts["answered"] == 6 and other.open_letters() == {}
    outputs = {a.custom_id: a.output for a in other.answers()}
    assert outputs["t-5"] == {"found": "number 5."}
    assert "number 0." in outputs["t-0"], "as plain text: today's judge would not have it"
    assert judge_again(judged) == 1
    assert judged.until(Until.SETTLED).counts["answered"] == 6
    judged.assert_accounted()


def test_a_row_that_both_rounds_answered_counts_once(bench: Callable[..., Bench]) -> None:
    """The judge refused the first answer, the retry brought another one; a wider judge takes both."""
    job = bench(texts=TEXTS, judge=LOW, policy=RowRetry(max_rounds=1, escalate_to="m-2"))
    job.run()
    wider = replace(job, judge=ALL)
    judge_again(wider)
    done = wider.until(Until.SETTLED)
    assert done.counts["answered"] == 6 and done.counts["answered_round_0"] == 6
    assert sorted(a.custom_id for a in wider.answers()) == sorted(TEXTS)
    assert wider.creates() == 2


def test_a_kill_while_judging_again_leaves_the_old_judgement_whole(judged: Bench) -> None:
    killed = replace(judged, judge=ALL, fault=die_at("rejudge.before_reconciled"))
    assert was_killed(lambda: judge_again(killed))
    judged.until(Until.SETTLED)
    assert sorted(judged.open_letters()) == ["t-4", "t-5"] and len(judged.answers()) == 4
    assert judge_again(replace(judged, judge=ALL)) == 1
    assert replace(judged, judge=ALL).until(Until.SETTLED).counts["answered"] == 6


def test_a_slow_process_with_another_judge_does_not_overwrite_what_counts(
    bench: Callable[..., Bench],
) -> None:
    job = bench(texts=TEXTS, judge=ALL, policy=RowRetry(max_rounds=0))
    job.until(Until.ENDED, submitting=True)
    slow = replace(job, judge=LOW)
    with Suspended(slow, "reconcile.before_reconciled", lambda b: b.step(Until.RECONCILED)) as other:
        job.until(Until.SETTLED)
        other.wake()
    assert other.error is None
    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert job.open_letters() == {} and len(job.answers()) == 6


@pytest.mark.parametrize("name", ["outcomes-*.jsonl", "raw/output.jsonl"])
def test_a_file_that_is_not_what_the_ledger_says_is_never_used(
    name: str, bench: Callable[..., Bench]
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.RECONCILED, submitting=True)
    (file,) = (job.root / "batch" / job.batches()[0].batch_id).glob(name)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"t-1", b"t-2").replace(b"number 1", b"number 7"))
    assert file.stat().st_size == len(whole) and file.read_bytes() != whole
    with pytest.raises(WorkspaceError, match="SHA-256"):
        job.until(Until.SETTLED)
    assert job.job().settled_at is None and not list((job.root / "results").glob("*/_manifest.json"))
    file.write_bytes(whole)
    job.until(Until.SETTLED)
    job.assert_accounted()
