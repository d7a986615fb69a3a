"""A create call whose reply is lost: looked for first, sent again only after two looks that found nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from airflow_batch_llm.backends.openai_objects import BatchObject
from airflow_batch_llm.core.model import BatchState, JobState, RemoteBatch
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.exceptions import AuthError, InDoubt, NotFound, Unreachable
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(4)}
SHORT = Settings(create_timeout=1.0, lease_margin=600.0, look_apart=0.2, queue_wait=0.1)


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    return bench(texts=TEXTS, settings=SHORT)


def spoil_creates(job: Bench, **rule: Any) -> None:
    job.server.set_scenario({"calls": [{"on": "create", "times": 1, **rule}]})


def test_a_batch_that_was_accepted_without_a_reply_is_found_and_taken_on(job: Bench) -> None:
    spoil_creates(job, fault="lost_reply")
    done = job.run()
    assert done.counts["answered"] == 4
    assert job.creates() == len(job.server.batches()) == 1
    assert job.batches()[0].attempt == 1
    assert job.actions().count("create_in_doubt") == 1 and "looked" not in job.actions()
    job.assert_accounted()


@pytest.mark.parametrize(
    "rule",
    [
        {"fault": "dropped"},
        {"fault": "error", "status": 500},
        {"fault": "error", "status": 502, "html": True},
        {"fault": "error", "status": 409},
        {"fault": "timeout"},
    ],
    ids=lambda rule: f"{rule['fault']}{rule.get('status', '')}",
)
def test_a_call_that_came_to_nothing_is_repeated_after_two_looks(rule: dict[str, Any], job: Bench) -> None:
    spoil_creates(job, **rule)
    assert job.step(Until.ENDED, submitting=True).reason == "in_doubt"
    job.expire_leases()
    done = job.run()
    assert done.counts["answered"] == 4
    assert job.creates() == 2 and len(job.server.batches()) == 1
    assert job.batches()[0].attempt == 2
    happened = [a for a in job.actions() if a in ("submitting", "looked", "submitting_left", "submitted")]
    assert happened == ["submitting", "looked", "submitting_left", "submitting", "submitted"]
    assert looks_after_the_lease(job) >= 2
    job.assert_accounted()


def looks_after_the_lease(job: Bench) -> int:
    """How often the list of batches was read between the two create calls."""
    calls = [call for call in job.server.requests() if call["path"] == "/v1/batches"]
    first, second = [n for n, call in enumerate(calls) if call["method"] == "POST"]
    return second - first - 1


def test_nothing_is_sent_again_while_the_lease_runs_or_the_looks_are_too_close(job: Bench) -> None:
    """Only time by the ledger's clock counts: calling again and again changes nothing."""
    patient = replace(job, settings=Settings(create_timeout=5.0, lease_margin=600.0, look_apart=600.0))
    spoil_creates(patient, fault="dropped")
    for _ in range(4):
        progress = patient.step(Until.ENDED, submitting=True)
        assert not progress.done and progress.reason == "in_doubt"
    lease = patient.batches()[0].lease_until
    assert lease is not None and progress.not_before == lease
    assert "looked" not in patient.actions() and patient.creates() == 1

    # The lease has ended, the first look finds nothing; the second one has to wait.
    patient.expire_leases()
    for _ in range(4):
        progress = patient.step(Until.ENDED, submitting=True)
        assert progress.not_before is not None and progress.not_before > patient.ledger.now() + 500
    assert patient.actions().count("looked") == 1 and patient.creates() == 1


def test_a_look_is_as_old_as_its_beginning(job: Bench) -> None:
    """A process is suspended for hours while the provider's list is on its way: that proves nothing."""
    patient = replace(job, settings=Settings(create_timeout=5.0, lease_margin=600.0, look_apart=600.0))
    spoil_creates(patient, fault="dropped")
    patient.step(Until.ENDED, submitting=True)
    patient.expire_leases()
    patient.step(Until.ENDED, submitting=True)
    assert patient.actions().count("looked") == 1
    hours = Hours(patient)
    replace(patient, ledger=hours, around_backend=hours.around).step(Until.ENDED, submitting=True)
    assert hours.passed and "submitting_left" not in patient.actions() and patient.creates() == 1


def test_a_batch_whose_metadata_the_server_dropped_is_known_by_its_upload(
    job: Bench, mocker: MockerFixture
) -> None:
    read = BatchObject.normalised

    def without_marks(self: BatchObject, *args: Any) -> RemoteBatch:
        return replace(read(self, *args), metadata={})

    mocker.patch.object(BatchObject, "normalised", without_marks)
    spoil_creates(job, fault="lost_reply")
    assert job.run().counts["answered"] == 4
    assert job.creates() == len(job.server.batches()) == 1
    assert "looked" not in job.actions()
    job.assert_accounted()


class Hours:
    """A clock that jumps while the provider is asked for its batches."""

    def __init__(self, job: Bench) -> None:
        self._ledger, self.passed = job.ledger, False

    def around(self, backend: Any) -> Any:
        outer = self

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend, name)

            async def find(self, *args: Any, **kwargs: Any) -> Any:
                found = await backend.find(*args, **kwargs)
                outer.passed = True
                return found

        return Slow()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def now(self) -> float:
        return self._ledger.now() + (10_000.0 if self.passed else 0.0)


def test_a_list_that_cannot_be_read_proves_nothing(job: Bench) -> None:
    """Nothing is known about the create call while the provider does not list its batches."""
    fault = {"fault": "error", "status": 503}
    quick = replace(job, options={"max_retries": 0})
    quick.server.set_scenario(
        {"calls": [{"on": "create", "fault": "dropped", "times": 1}, {"on": "list", **fault}]}
    )
    with pytest.raises((Unreachable, InDoubt)):
        quick.step(Until.ENDED, submitting=True)
    quick.expire_leases()
    for _ in range(3):
        with pytest.raises((Unreachable, InDoubt)):
            quick.step(Until.ENDED, submitting=True)
    assert quick.creates() == 1 and quick.batches()[0].state is BatchState.SUBMITTING
    assert "looked" not in quick.actions()
    quick.server.set_scenario({})
    quick.run()
    quick.assert_accounted()
    assert quick.creates() == 2


def test_a_lease_is_longer_than_the_connections_own_time_out(job: Bench) -> None:
    """A connection may allow its create calls more time than the setting does."""
    slow = replace(job, options={"create_timeout_seconds": 300.0})
    spoil_creates(slow, fault="dropped")
    slow.step(Until.ENDED, submitting=True)
    lease = slow.batches()[0].lease_until
    assert lease is not None and lease - slow.ledger.now() > 290


def test_a_wrong_key_is_told_before_anything_is_accepted(job: Bench) -> None:
    wrong = replace(job, api_key="not-the-key")
    for _ in range(2):
        with pytest.raises(AuthError):
            wrong.step(Until.ENDED, submitting=True)
    assert job.creates() == 0 and job.job().state is JobState.RUNNING
    job.ledger.hurry_probe(job.conn_id, actor="ann", reason="a new key")
    done = job.run()
    assert done.counts["answered"] == 4 and done.revision == 1
    job.assert_accounted()


def test_a_key_refused_at_the_create_call_leaves_no_doubt(job: Bench) -> None:
    spoil_creates(job, fault="error", status=401)
    with pytest.raises(AuthError):
        job.step(Until.ENDED, submitting=True)
    assert job.batches()[0].state is BatchState.UPLOADED
    job.ledger.hurry_probe(job.conn_id, actor="ann", reason="a new key")
    job.run()
    assert "looked" not in job.actions()
    job.assert_accounted()


def test_a_batch_that_cannot_be_read_right_after_its_create_call_is_not_lost(job: Bench) -> None:
    job.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404, "times": 3}]})
    done = job.run()
    assert done.counts["answered"] == 4 and "lost" not in job.actions()
    assert job.creates() == 1


def test_an_upload_that_is_gone_at_the_create_call_is_made_again(job: Bench) -> None:
    denied: list[str] = []

    class WithoutTheFirstUpload:
        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)

        async def create(self, order: CreateOrder) -> Any:
            if not denied:
                denied.append(order.input_file_id)
                raise NotFound("POST /batches: HTTP 404: the provider knows no such id")
            return await self._backend.create(order)

    done = replace(job, around_backend=WithoutTheFirstUpload).run()
    assert done.counts["answered"] == 4 and job.creates() == 1
    assert len(job.server.requests("POST", "/v1/files")) == 2 and job.batches()[0].attempt == 2
    job.assert_accounted()
