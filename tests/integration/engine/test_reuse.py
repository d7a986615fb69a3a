"""Answers that an earlier job bought are not bought again, and are this job's own from then on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import JobState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.publish import read_manifest
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Rerun
from airflow_batch_llm.exceptions import WorkspaceError
from tests.job_bench import CHAT, Bench, drafts_of

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
TASK, CONNECTION = Reuse("task"), Reuse("connection")
NOTHING = {"input": 0, "output": 0, "cached": 0, "cache_write": 0, "reasoning": 0}


@pytest.fixture
def night(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    """A run of the same task: each call is another night."""

    def make(**values: Any) -> Bench:
        values.setdefault("reuse", TASK)
        values.setdefault("texts", TEXTS)
        return bench(**values)

    return make


def origins(job: Bench) -> dict[str, str]:
    return {a.custom_id: a.origin for a in job.answers()}


def outputs(job: Bench) -> dict[str, Any]:
    return {a.custom_id: a.output for a in job.answers()}


def manifest(job: Bench) -> dict[str, Any]:
    workspace = job.workspace
    return read_manifest(workspace, f"{workspace.job_root(job.key)}/results/{job.job().revision}")


def charged(job: Bench) -> int:
    return job.server.summary()["charged"]


def purge(job: Bench) -> None:
    """Take away all that a job has in the workspace."""
    shutil.rmtree(job.root)


def test_of_a_corpus_that_changed_a_little_only_the_changed_rows_are_sent(
    night: Callable[..., Bench],
) -> None:
    texts = {f"doc-{n:03}": f"chunk {n} of the corpus" for n in range(200)}
    first = night(texts=texts, options={"max_requests": 60})
    first.settle()
    changed = {"doc-007": "chunk 7, rewritten", "doc-150": "chunk 150, rewritten"}
    texts = {**texts, **changed, "doc-new": "a new chunk"}
    del texts["doc-100"]
    second = night(texts=texts)
    done = second.settle()
    assert [b.requests for b in second.batches()] == [3]
    assert done.counts["rows"] == done.counts["answered"] == 200 and done.counts["reused"] == 197
    assert charged(second) == 203
    paid = {custom_id for custom_id, origin in origins(second).items() if origin == "paid"}
    assert paid == {"doc-007", "doc-150", "doc-new"}
    before, after = outputs(first), outputs(second)
    assert all(after[i] == before[i] for i in texts if i not in paid) and set(after) == set(texts)
    assert "rewritten" in after["doc-007"]
    second.assert_accounted()


def test_a_night_with_nothing_new_sends_nothing_and_is_charged_nothing(night: Callable[..., Bench]) -> None:
    first = night()
    first.settle()
    second = night()
    done = second.settle()
    assert done.state is JobState.SETTLED and second.batches() == []
    assert second.server.summary()["charged"] == 6
    assert {a.usage["input"] + a.usage["output"] for a in second.answers()} == {0}
    spent, not_spent = manifest(first)["usage"], manifest(second)
    assert not_spent["usage"] == NOTHING and not_spent["saved"] == spent


def test_a_reused_answer_has_the_key_and_the_id_of_its_new_row(night: Callable[..., Bench]) -> None:
    night().settle()

    def renamed() -> Any:
        for draft in drafts_of(TEXTS):
            draft.custom_id = f"new-{draft.custom_id}"
            draft.key, draft.carry = {"new": draft.custom_id}, {"title": "carried"}
            yield draft

    second = night(drafts=renamed)
    second.settle()
    (answer,) = [a for a in second.answers() if a.custom_id == "new-t-3"]
    assert answer.key == {"new": "new-t-3"} and answer.carry == {"title": "carried"}
    assert answer.origin == "reused" and "number 3." in answer.output
    assert all(isinstance(a, Answer) for a in second.answers())
    second.assert_accounted([f"new-{i}" for i in TEXTS])


def test_what_was_reused_is_not_lost_when_the_job_that_bought_it_is_purged(
    night: Callable[..., Bench],
) -> None:
    first = night()
    first.settle()
    second = night()
    second.settle()
    before = outputs(second)
    purge(first)
    again = second.clear()
    done = again.settle()
    assert done.revision == 2 and outputs(again) == before and charged(again) == 6
    assert set(origins(again).values()) == {"reused"}
    third = night(reuse=Reuse("task"))
    third.settle()
    assert charged(third) == 12, "what cannot be read any more is bought again"
    assert set(origins(third).values()) == {"paid"}


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_an_answer_from_a_file_that_is_not_what_it_was_is_not_taken(
    damage: str, night: Callable[..., Bench]
) -> None:
    first = night()
    first.settle()
    (raw,) = first.root.glob("batch/*/raw/output.jsonl")
    data = raw.read_bytes()
    raw.write_bytes(data[:-10] if damage == "cut" else data.replace(b"number 5", b"number 7"))
    second = night()
    second.settle()
    assert charged(second) == 12
    second.assert_accounted()


def no_three(output: Any, row: dict[str, Any]) -> str | None:
    return "is about number 3" if "number 3." in output else None


def only_its_own(output: Any, row: dict[str, Any]) -> str | None:
    return None if f"number {row['id'][-1]}." in output else "is about another ticket"


def test_an_answer_that_the_judge_of_today_rejects_is_bought_again(night: Callable[..., Bench]) -> None:
    night().settle()
    second = night(judge=Judge(validate=no_three), policy=RowRetry(max_rounds=0))
    second.settle()
    assert second.job().counts["reused"] == 5 and charged(second) == 7
    assert second.open_letters() == {"t-3": "rejected"}
    second.assert_accounted()


def test_a_check_that_looks_at_the_row_sees_the_row_of_today(night: Callable[..., Bench]) -> None:
    night().settle()
    turned = {"t-1": TEXTS["t-2"], "t-2": TEXTS["t-1"], "t-3": TEXTS["t-3"]}
    second = night(texts=turned, judge=Judge(validate=only_its_own))
    second.settle()
    assert [origin for _, origin in sorted(origins(second).items())] == ["reused"]
    assert set(second.open_letters()) == {"t-1", "t-2"}, "they were sent, and answered as before"


def no_nine(output: Any, row: dict[str, Any]) -> str | None:
    return "is about number 9" if "number 9." in output else None


def broken_at_three(output: Any, row: dict[str, Any]) -> str | None:
    return None if "number 3." not in output else output["no such thing"]


def test_a_validator_that_fails_itself_buys_nothing_again(night: Callable[..., Bench]) -> None:
    night().settle()
    twice = {**TEXTS, "t-3-again": TEXTS["t-3"]}
    second = night(texts=twice, judge=Judge(validate=broken_at_three))
    second.settle()
    assert charged(second) == 6, "all of them in the first night"
    assert second.open_letters() == {"t-3": "validator_failed", "t-3-again": "validator_failed"}
    second.assert_accounted()

    # Mended: a clear finds the answers after all.
    mended = second.clear(judge=Judge(validate=no_nine))
    mended.settle()
    assert mended.open_letters() == {} and charged(mended) == 6


def test_a_stricter_judge_leaves_answered_what_was_reused(night: Callable[..., Bench]) -> None:
    night().settle()
    second = night()
    second.settle()
    judged = second.retry(judge=Judge(validate=no_three))
    judged.call(lambda engine: engine.rejudge())
    assert judged.settle().counts["answered"] == 6
    assert set(origins(judged).values()) == {"reused"} and charged(judged) == 6


def test_an_answer_that_is_too_old_is_bought_again(night: Callable[..., Bench]) -> None:
    first = night()
    first.settle()
    with first.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_answer SET answered_at = answered_at - 7200")
    assert set(origins_of(night(reuse=Reuse("task", timedelta(hours=3)))).values()) == {"reused"}
    assert set(origins_of(night(reuse=Reuse("task", timedelta(hours=1)))).values()) == {"paid"}


def origins_of(job: Bench) -> dict[str, str]:
    job.settle()
    return origins(job)


@pytest.mark.parametrize(
    "other",
    [
        {"reuse": Reuse("task", version="2")},
        {"reuse": Reuse("job")},
        {"reuse": None},
        {"template": RequestTemplate(CHAT, "m-2", {"max_tokens": 100})},
        {"template": RequestTemplate(CHAT, "m-1", {"max_tokens": 99})},
        {"template": RequestTemplate(CHAT, "m-1", {"max_tokens": 100}, {"type": "object"})},
        {"task_id": "other.submit"},
        {"conn_id": "other", "task_id": "other.submit", "reuse": CONNECTION},
    ],
    ids=lambda other: ", ".join(other),
)
def test_what_is_asked_otherwise_is_bought(other: dict[str, Any], night: Callable[..., Bench]) -> None:
    night().settle()
    second = night(**other)
    assert set(origins_of(second).values()) == {"paid"} and charged(second) == 12


@pytest.mark.parametrize(
    "same",
    [
        {"reuse": Reuse("task", timedelta(days=1))},
        {"conn_id": "other"},
        {"task_id": "other.submit", "reuse": CONNECTION},
        {"policy": RowRetry(max_rounds=7)},
    ],
    ids=lambda same: ", ".join(same),
)
def test_what_is_asked_again_is_not_bought(same: dict[str, Any], night: Callable[..., Bench]) -> None:
    night().settle()
    second = night(**same)
    assert set(origins_of(second).values()) == {"reused"} and charged(second) == 6


def test_any_scope_finds_what_a_job_of_any_other_scope_bought(night: Callable[..., Bench]) -> None:
    night(reuse=Reuse("job")).settle()
    assert set(origins_of(night(reuse=TASK)).values()) == {"reused"}
    assert set(origins_of(night(reuse=CONNECTION, task_id="other.submit")).values()) == {"reused"}


def test_a_clear_that_wants_everything_anew_looks_nothing_up(night: Callable[..., Bench]) -> None:
    night().settle()
    second = night()
    second.settle()
    fresh = second.clear(rerun=Rerun.FRESH)
    fresh.settle()
    assert set(origins(fresh).values()) == {"paid"} and charged(fresh) == 12
    later = fresh.clear(rerun=Rerun.MISSING)
    later.settle()
    assert set(origins(later).values()) == {"paid"} and charged(later) == 12


def test_the_row_that_another_model_answered_is_for_the_same_task_only(night: Callable[..., Bench]) -> None:
    policy = RowRetry(max_rounds=2, escalate_to="m-9", dispositions={"server_error": "retry_changed"})
    first = night(policy=policy)
    first.server.set_scenario(
        {"rows": [{"match": {"contains": "number 2."}, "fault": "server_error", "times": 1}]}
    )
    first.settle()
    assert {a.custom_id: a.model for a in first.answers()}["t-2"] == "m-9"
    assert set(origins_of(night(policy=policy)).values()) == {"reused"}
    other = origins_of(night(reuse=CONNECTION, task_id="other.submit"))
    assert [custom_id for custom_id, origin in other.items() if origin == "paid"] == ["t-2"]


def test_the_plan_says_when_a_file_with_reused_answers_was_changed(night: Callable[..., Bench]) -> None:
    night().settle()
    second = night()
    second.settle()
    (path,) = second.root.glob("plan-*/reused.jsonl")
    path.write_bytes(path.read_bytes().replace(b"number 1", b"number 2"))
    with pytest.raises(WorkspaceError):
        replace(second).settle()
