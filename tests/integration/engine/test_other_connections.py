"""A batch is looked after with the connection it was sent with, whatever the task names today."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_batch_llm.core.spec import Until
from tests.job_bench import Bench
from tests.local_server import LocalServer

TEXTS = {"t-1": "one", "t-2": "two", "t-3": "three"}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path / "other") as server:
        yield server


def moved(b: Bench, other: LocalServer, **changes: object) -> Bench:
    """The job after its connection was changed and its group cleared."""
    return b.clear(server=other, conn_id="other", other_servers={"llm": b.server}, **changes)


def test_a_batch_in_flight_is_followed_where_it_was_sent(
    bench: Callable[..., Bench], other: LocalServer
) -> None:
    b = bench(texts=TEXTS)
    b.server.set_scenario({"pace": {"seconds": 600}})
    progress = b.step(Until.ENDED, submitting=True)
    assert not progress.done and progress.conn_id == "llm"
    changed = moved(b, other, texts={**TEXTS, "t-4": "four"})
    progress = changed.step(Until.ENDED, submitting=True)
    assert progress.conn_id == "llm" and len(progress.provider_batches) == 1
    b.server.release()
    job = changed.run()
    assert job.counts["answered"] == 4 and job.halt_code is None
    assert b.server.summary()["charged"] == 3 and other.summary()["charged"] == 1
    assert [x.conn_id for x in changed.batches()] == ["llm", "other"]


def test_a_create_call_in_doubt_is_looked_for_where_it_was_made(
    bench: Callable[..., Bench], other: LocalServer
) -> None:
    b = bench(texts=TEXTS)
    faults = [
        {"on": "create", "fault": "lost_reply", "times": 1},
        {"on": "list", "fault": "error", "status": 503},
    ]
    b.server.set_scenario({"calls": faults})
    with pytest.raises(Exception, match="BLLM"):
        b.step(Until.ENDED, submitting=True)
    b.server.set_scenario({})
    job = moved(b, other).run()
    assert job.counts["answered"] == 3
    assert b.server.summary()["charged"] == 3 and other.summary()["charged"] == 0


def test_a_retry_round_goes_to_the_connection_of_the_task(
    bench: Callable[..., Bench], other: LocalServer
) -> None:
    b = bench(texts=TEXTS)
    b.server.set_scenario({"rows": [{"match": {"contains": "two"}, "fault": "server_error"}]})
    b.until(Until.RECONCILED, submitting=True)
    later = b.retry(server=other, conn_id="other", other_servers={"llm": b.server})
    later.until(Until.SETTLED)
    assert len(later.answers()) == 3
    assert (b.server.summary()["charged"], other.summary()["charged"]) == (2, 1)
