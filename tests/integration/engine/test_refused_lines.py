"""A provider that checks all lines and refuses the batch before there is one: at the upload, or the call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core import rounds
from airflow_batch_llm.core.model import BatchState, JobState, RemoteBatch
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.purge import ALL, purge
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.core.submit import UPLOAD_NOT_READY
from airflow_batch_llm.exceptions import LinesRefused, NotFound, Refused, RefusedLine
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(8)}
SAID = "a text that quotes the prompt"
AT = pytest.mark.parametrize("at", ["upload", "create", "inline"])


class Checking:
    """Checks every line before it takes anything, as some protocols do; what passes goes to the real one.

    :param at: where it checks: at the ``upload``, at the ``create`` call of one, or ``inline``.
    :param poison: texts that it refuses.
    :param names: whether it says in which lines they stand.
    :param most: how many lines it names at a time.
    """

    def __init__(
        self, at: str, *poison: str, names: bool = True, line: int | None = None, most: int = 1_000
    ) -> None:
        self.at, self.poison, self.names, self.line = at, [text.encode() for text in poison], names, line
        self.most = most
        self.inline = at == "inline"
        self.deleted: list[str] = []
        self.refused: list[int] = []
        self._uploads = tempfile.TemporaryDirectory(prefix="checking-")  # for processes that come later
        self._backend: Any = None

    def around(self, backend: Any) -> Checking:
        self._backend = backend
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def upload(self, local: Path, name: str) -> str:
        assert not self.inline
        if self.at == "upload":
            self._check(local.read_bytes())
        file_id: str = await self._backend.upload(local, name)
        (Path(self._uploads.name) / file_id).write_bytes(local.read_bytes())
        return file_id

    async def create(self, order: CreateOrder) -> RemoteBatch:
        if not self.inline:
            if self.at == "create":
                self._check((Path(self._uploads.name) / order.input_file_id).read_bytes())
            return await self._create(order)
        assert order.lines is not None and order.input_file_id == ""
        lines = order.lines.read_bytes()
        assert len(lines.splitlines()) == order.requests
        self._check(lines)
        file_id = await self._backend.upload(order.lines, "inline.jsonl")
        return await self._create(replace(order, input_file_id=file_id, lines=None))

    async def _create(self, order: CreateOrder) -> RemoteBatch:
        created: RemoteBatch = await self._backend.create(order)
        return created

    async def delete_file(self, file_id: str) -> None:
        assert file_id
        self.deleted.append(file_id)
        await self._backend.delete_file(file_id)

    def _check(self, data: bytes) -> None:
        lines = data.splitlines()
        bad = [n for n, line in enumerate(lines, start=1) if any(text in line for text in self.poison)]
        if not bad:
            return
        self.refused.append(len(lines))
        named = [RefusedLine(self.line or n, "bad_value", SAID) for n in bad] if self.names else []
        raise LinesRefused("refused", lines=named[: self.most], status_code=422, reason="invalid_file")


def checked(bench: Callable[..., Bench], provider: Checking, **values: Any) -> Bench:
    values.setdefault("policy", RowRetry(max_rounds=0))
    values.setdefault("texts", TEXTS)
    return bench(around_backend=provider.around, **values)


@AT
def test_rows_whose_lines_are_named_die_and_the_others_are_sent_free_of_charge(
    at: str, bench: Callable[..., Bench]
) -> None:
    provider = Checking(at, "number 2.", "number 5.")
    job = checked(bench, provider)
    done = job.run()
    assert done.counts["answered"] == 6 and job.creates() == 1 and provider.refused == [8]
    assert job.open_letters() == {"t-2": "bad_value", "t-5": "bad_value"}
    refused, sent = job.batches()
    assert (refused.state, refused.provider_batch_id, refused.provider_status, refused.error_code) == (
        BatchState.RECONCILED,
        None,
        "failed",
        "invalid_file",
    )
    assert (refused.requests, sent.requests) == (8, 6) and refused.files == ()
    assert all(SAID in letter.message and not letter.exhausted for letter in job.letters())
    assert [a.charged for a in job.letters()[0].attempts] == [True]
    events = job.ledger.events(job.key.job_id)
    assert not any(SAID in event.reason for event in events)
    assert [e.reason for e in events if e.action == "refused"] == ["invalid_file: 2 lines named, 8 requests"]
    (told,) = [e.reason for e in events if e.action == "lines_refused"]
    assert "line 3 ('t-2'): bad_value" in told
    if at == "create":
        assert len(provider.deleted) == 2, "the upload that nobody uses, and the one that was read"
    job.assert_accounted()


@AT
def test_where_no_line_is_named_it_is_looked_for_in_halves(at: str, bench: Callable[..., Bench]) -> None:
    provider = Checking(at, "number 5.", names=False)
    job = checked(bench, provider)
    assert job.run().counts["answered"] == 7
    assert job.open_letters() == {"t-5": "invalid_file"}
    assert sorted(provider.refused) == [1, 2, 4, 8]
    job.assert_accounted()


def test_rows_at_fault_that_are_named_one_at_a_time_cost_the_others_nothing(
    bench: Callable[..., Bench],
) -> None:
    """More of them than a row has free rounds."""
    texts = {f"t-{n}": f"ticket number {n}." for n in range(96)}
    poison = [f"number {n}." for n in range(0, 96, 4)]
    provider = Checking("inline", *poison, most=1)
    job = checked(bench, provider, texts=texts)
    assert len(poison) > job.policy.max_free_rounds
    done = job.run()
    assert (done.counts["answered"], done.counts["dead"]) == (72, 24)
    assert set(job.open_letters().values()) == {"bad_value"}
    job.assert_accounted()


def test_a_fault_of_all_rows_that_is_told_line_by_line_is_a_persons_matter(
    bench: Callable[..., Bench],
) -> None:
    texts = {f"t-{n}": f"ticket number {n}." for n in range(320)}
    provider = Checking("inline", "number", most=1)
    job = checked(bench, provider, texts=texts)
    halted = job.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-023")
    assert len(provider.refused) < 150 and job.creates() == 0


@pytest.mark.parametrize("mended", [False, True])
def test_a_person_who_resumes_it_lets_the_search_go_on_for_a_round(
    mended: bool, bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_MOST_REFUSED", 3)
    provider = Checking("inline", "number", names=False)
    job = checked(bench, provider, options={"max_requests": 2})
    assert job.run().halt_code == "BLLM-023" and len(provider.refused) == 4
    if mended:
        provider.poison.clear()
    resume(job)
    done = job.retry().run()
    assert (done.state, done.counts["answered"]) == (JobState.SETTLED, 8 if mended else 0)
    assert len(provider.refused) == (4 if mended else 4 + 8), "halves of what was refused"
    job.assert_accounted()


def resume(job: Bench) -> None:
    resumed = job.ledger.resume_job(job.job(), actor="ann", reason="go on", deadline_at=None)
    assert resumed is not None


def test_lines_that_the_batch_does_not_have_name_no_row(bench: Callable[..., Bench]) -> None:
    provider = Checking("upload", "number 5.", line=99)
    job = checked(bench, provider)
    assert job.run().counts["answered"] == 7 and list(job.open_letters()) == ["t-5"]
    assert sorted(provider.refused) == [1, 2, 4, 8]


def test_a_provider_that_refuses_everything_is_not_asked_without_end(bench: Callable[..., Bench]) -> None:
    provider = Checking("inline", "number", names=False)
    texts = {f"t-{n}": f"ticket number {n}." for n in range(66)}
    job = checked(bench, provider, texts=texts, options={"max_requests": 2})
    halted = job.run()
    assert halted.state is JobState.HALTED and halted.halt_code == "BLLM-023"
    assert len(provider.refused) == 33 and job.letters() == [] and job.creates() == 0


def test_a_fault_that_all_lines_share_is_told_and_nothing_is_bisected(bench: Callable[..., Bench]) -> None:
    class NoModel(Checking):
        def _check(self, data: bytes) -> None:
            raise LinesRefused("refused", lines=[RefusedLine(1, "model_not_found")], reason="x")

    for at in ("upload", "create", "inline"):
        job = checked(bench, NoModel(at))
        with pytest.raises(Refused):
            job.step(Until.ENDED, submitting=True)
        assert job.batches()[0].state in (BatchState.PLANNED, BatchState.UPLOADED)


@pytest.mark.parametrize("at", ["upload", "create"])
@pytest.mark.parametrize(
    "point", ["refused.before_outcomes", "refused.before_closed", "refused.after_closed"]
)
def test_a_kill_while_a_refusal_is_written_down_changes_nothing(
    point: str, at: str, bench: Callable[..., Bench]
) -> None:
    job = checked(bench, Checking(at, "number 2."))
    assert was_killed(replace(job, fault=die_at(point)).run)
    job.expire_leases()
    done = job.retry().run()
    assert done.counts["answered"] == 7 and job.creates() == 1
    assert job.open_letters() == {"t-2": "bad_value"} and job.actions().count("refused") == 1
    job.assert_accounted()


def test_what_was_refused_is_judged_again_re_driven_and_purged_like_any_other(
    bench: Callable[..., Bench],
) -> None:
    provider = Checking("create", "number 2.")
    job = checked(bench, provider)
    job.run()
    assert job.call(lambda engine: engine.rejudge()) == 0
    provider.poison = []
    redriven = job.call(lambda engine: engine.redrive(actor="ann", reason="mended", mark="m"))
    assert redriven == 1 and job.until(Until.SETTLED).counts["answered"] == 8
    purged = job.call(
        lambda engine: purge(
            job.ledger, job.workspace, job.job(), ALL, actor="ann", reason="old",
            backend_of=lambda conn_id: engine.tools.backend,
        )
    )  # fmt: skip
    assert purged.failed == {}


def test_the_rows_of_a_refused_batch_are_sent_by_a_clear_where_nobody_did(
    bench: Callable[..., Bench],
) -> None:
    provider = Checking("inline", "number 2.")
    job = checked(bench, provider)
    job.until(Until.RECONCILED, submitting=True)
    assert job.creates() == 0 and job.job().round == 0
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 7 and cleared.open_letters() == {"t-2": "bad_value"}
    cleared.assert_accounted()


# -- uploads that take time ------------------------------------------------------------------------
class Slowly(Checking):
    """An upload that is asked about before it is used.

    :param says: what it says, one after the other; then that it is ready.
    """

    def __init__(self, *says: float | Exception) -> None:
        super().__init__("nowhere")
        self.says = list(says)
        self.asked = 0
        self.waited = 0.0

    async def ready(self, file_id: str, *, waited: float = 0.0) -> float | None:
        assert file_id and waited >= 0.0
        self.asked += 1
        self.waited = waited
        said = self.says.pop(0) if self.says else None
        if isinstance(said, Exception):
            raise said
        return said


def test_an_upload_that_is_not_ready_is_waited_for_without_an_intent(bench: Callable[..., Bench]) -> None:
    provider = Slowly(0.05, 0.05)
    job = checked(bench, provider)
    progress = job.step(Until.ENDED, submitting=True)
    assert progress.reason == "upload_not_ready" and progress.not_before is not None
    assert "submitting" not in job.actions()
    assert job.run().counts["answered"] == 8 and provider.asked == 3
    assert len(job.server.requests("POST", "/v1/files")) == 1


def test_an_upload_that_takes_long_is_told_once_and_waited_for(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Slowly(*[0.01] * 5)
    job = checked(bench, provider)
    job.step(Until.ENDED, submitting=True)
    assert UPLOAD_NOT_READY not in job.actions() and provider.waited < 900
    later = job.ledger.now() + 1000
    monkeypatch.setattr(type(job.ledger), "now", lambda ledger: later)
    for _ in range(2):
        job.step(Until.ENDED, submitting=True)
        assert provider.waited > 900
    monkeypatch.undo()
    assert job.run().counts["answered"] == 8 and job.actions().count(UPLOAD_NOT_READY) == 1


def test_an_upload_that_is_gone_is_made_again_but_not_without_end(bench: Callable[..., Bench]) -> None:
    job = checked(bench, Slowly(NotFound("gone")))
    assert job.run().counts["answered"] == 8
    assert len(job.server.requests("POST", "/v1/files")) == 2 and job.batches()[0].attempt == 1
    vanishing = checked(bench, Slowly(*[NotFound("gone") for _ in range(9)]))
    with pytest.raises(NotFound):
        vanishing.step(Until.ENDED, submitting=True)
    assert vanishing.creates() == 1 and vanishing.actions().count("put_back") == 6


def test_an_upload_that_cannot_be_used_is_told_and_made_again(bench: Callable[..., Bench]) -> None:
    job = checked(bench, Slowly(Refused("cannot be read", reason="file_failed")))
    with pytest.raises(Refused):
        job.step(Until.ENDED, submitting=True)
    assert job.batches()[0].state is BatchState.PLANNED and job.creates() == 0
    assert job.retry().run().counts["answered"] == 8


# -- connections that were changed in between ------------------------------------------------------
def test_a_connection_that_takes_uploads_now_gets_one(bench: Callable[..., Bench]) -> None:
    inline = checked(bench, Checking("inline"))
    assert was_killed(
        lambda: replace(inline, fault=die_at("submit.before_intent")).step(Until.ENDED, submitting=True)
    )
    assert inline.batches()[0].input_file_id == ""
    uploads = replace(inline, around_backend=Checking("nowhere").around, first_try=False)
    assert uploads.run().counts["answered"] == 8
    assert len(uploads.server.requests("POST", "/v1/files")) == 1 and uploads.batches()[0].input_file_id


def test_what_is_given_up_unsent_has_no_upload_to_delete(bench: Callable[..., Bench]) -> None:
    provider = Checking("inline")
    job = checked(bench, provider, job_timeout=3600.0)
    assert was_killed(
        lambda: replace(job, fault=die_at("submit.before_intent")).step(Until.ENDED, submitting=True)
    )
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_job SET deadline_at = 1")
    settled = job.retry().run()
    assert settled.counts["dead"] == 8 and provider.deleted == [] and job.creates() == 0
    assert set(job.open_letters().values()) == {"job_timeout"}
