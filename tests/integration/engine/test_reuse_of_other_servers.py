"""What one server answered never stands for the answer of another, whatever the connection is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_batch_llm.core.reuse import Reuse
from tests.job_bench import Bench
from tests.local_server import LocalServer

TEXTS = {"t-1": "one", "t-2": "two"}


@pytest.fixture
def real(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path / "real") as server:
        yield server


@pytest.mark.parametrize("scope", ["task", "connection"])
def test_a_connection_that_was_tried_with_one_server_buys_anew_at_another(
    scope: str, bench: Callable[..., Bench], real: LocalServer
) -> None:
    tried = bench(texts=TEXTS, reuse=Reuse(scope))
    tried.settle()
    first = bench(texts=TEXTS, reuse=Reuse(scope))
    first.server = real
    first.settle()
    assert {a.origin for a in first.answers()} == {"paid"} and real.summary()["charged"] == 2
    second = bench(texts=TEXTS, reuse=Reuse(scope))
    second.server = real
    second.settle()
    assert {a.origin for a in second.answers()} == {"reused"} and real.summary()["charged"] == 2


def test_what_a_job_keeps_when_it_moves_to_another_server_is_noted_for_the_one_that_answered(
    bench: Callable[..., Bench], real: LocalServer
) -> None:
    job = bench(texts=TEXTS, reuse=Reuse("task"))
    job.settle()
    texts = {**TEXTS, "t-3": "three"}
    job.clear(server=real, conn_id="other", other_servers={"llm": job.server}, texts=texts).settle()
    assert real.summary()["charged"] == 1
    later = bench(texts=texts, reuse=Reuse("task"))
    later.server = real
    later.settle()
    assert {a.custom_id for a in later.answers() if a.origin == "reused"} == {"t-3"}
    assert real.summary()["charged"] == 3
