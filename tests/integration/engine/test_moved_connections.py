"""A connection that is given another provider in the middle of a job: nothing is lost, nothing is paid twice.

What the other provider says of a batch that it never had means nothing: least of all that it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState
from airflow_batch_llm.core.purge import delete_at_provider
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.engine.server_since import ServerSince
from tests.integration.engine.test_time_limits import let_time_pass
from tests.job_bench import QUICK, Bench
from tests.local_server import LocalServer

MOVES = [("anthropic", "openai"), ("openai", "anthropic"), ("gemini", "mistral"), ("mistral", "gemini")]


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("moved-server")) as server:
        yield server


@pytest.fixture
def bench(of_all: LocalServer, tmp_path: Path) -> Iterator[Bench]:
    of_all.set_scenario({})
    texts = {f"t-{n}": f"ticket number {n}." for n in range(3)}
    yield Bench(ServerSince(of_all), open_default_sqlite(tmp_path / "ledger.db"), tmp_path / "files", texts)
    of_all.release()


class Blind:
    """A backend whose process dies before it can look whether a create call took effect."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name in ("find", "list_since"):
            raise KeyboardInterrupt
        return getattr(self._backend, name)


def executed(bench: Bench) -> int:
    return int(bench.server.summary()["executed"])


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_create_call_in_doubt_is_not_sent_to_the_other_provider(
    before: str, after: str, bench: Bench
) -> None:
    bench.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    bench = replace(bench, provider=before)
    with pytest.raises(KeyboardInterrupt):
        replace(bench, around_backend=Blind).step(Until.ENDED, submitting=True)
    bench.expire_leases()
    moved = bench.retry(provider=after)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"names provider '{after}'.*was sent to '{before}'"):
            moved.step(Until.ENDED)
    assert [batch.state for batch in moved.batches()] == [BatchState.SUBMITTING]
    done = bench.retry().settle()
    assert done.counts["answered"] == 3
    bench.assert_accounted()


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_batch_at_work_is_neither_lost_nor_gone(before: str, after: str, bench: Bench) -> None:
    bench = replace(bench, provider=before)
    bench.step(Until.ENDED, submitting=True)
    with pytest.raises(ConfigurationError, match="use another connection"):
        bench.retry(provider=after).until(Until.SETTLED)
    assert all(batch.state in (BatchState.SUBMITTED, BatchState.ENDED) for batch in bench.batches())
    assert bench.retry().settle().counts["answered"] == 3
    bench.assert_accounted()


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_what_was_read_is_published_in_the_words_of_its_own_provider(
    before: str, after: str, bench: Bench
) -> None:
    bench = replace(bench, provider=before)
    bench.until(Until.ENDED, submitting=True)
    bench.until(Until.RECONCILED)
    moved = bench.retry(provider=after)
    assert moved.settle().counts["answered"] == 3
    moved.assert_accounted()


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_what_was_not_sent_yet_goes_to_the_other_provider(before: str, after: str, bench: Bench) -> None:
    def die(point: str) -> None:
        if point == "submit.before_intent":
            raise KeyboardInterrupt

    bench = replace(bench, provider=before)
    with pytest.raises(KeyboardInterrupt):
        replace(bench, fault=die).step(Until.ENDED, submitting=True)
    moved = bench.retry(provider=after)
    assert moved.settle().counts["answered"] == 3
    assert {batch.provider for batch in moved.batches()} == {after}
    assert executed(moved) == 3


def test_answers_of_the_other_provider_are_not_taken_for_those_of_the_first(bench: Bench) -> None:
    def die(point: str) -> None:
        if point == "submit.before_upload":
            raise KeyboardInterrupt

    bench = replace(bench, reuse=Reuse())
    with pytest.raises(KeyboardInterrupt):
        replace(bench, fault=die).step(Until.ENDED, submitting=True)
    bench.retry(provider="mistral").settle()
    later = replace(bench, run_id="run-2").settle()
    assert later.counts.get("reused", 0) == 0 and later.counts["answered"] == 3


def test_a_purge_does_not_take_the_other_providers_word_for_it(bench: Bench) -> None:
    bench = replace(bench, provider="anthropic")
    bench.settle()

    async def purge(engine: Any) -> tuple[int, dict[str, str]]:
        other = replace(bench, provider="openai")
        return await delete_at_provider(bench.batches(), lambda conn_id: other.backend(other.server))

    deleted, failed = bench.call(purge)
    assert deleted == 0 and list(failed.values()) == ["BLLM-001"]


def test_a_trial_at_the_provider_before_is_nothing_that_other_jobs_wait_for_or_fail_by(bench: Bench) -> None:
    """Rows blame the account, a batch tries the connection, and then that is given another provider."""
    bench = replace(bench, provider="openai", settings=replace(QUICK, probe_first=600.0))
    bench.server.set_scenario({"rows": [{"match": {}, "fault": "insufficient_quota"}]})
    assert bench.run().halt_code == "BLLM-021"
    bench.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    let_time_pass(bench, "probe_at", "batch_llm_hold")
    second = replace(bench, run_id="second")
    assert second.step(Until.ENDED, submitting=True).reason == "running"
    bench.server.set_scenario({})
    let_time_pass(bench, "probe_at", "batch_llm_hold")
    third = replace(bench, run_id="third", provider="anthropic")
    assert third.run().counts["answered"] == 3
    assert bench.ledger.get_hold("llm") is None
