"""A batch that the provider refuses as a whole, naming no line: the rows at fault are found, bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchError, JobState, RemoteBatch, RemoteStatus
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.ports import CreateOrder
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(16)}


class Picky:
    """A provider that takes any batch but fails those that hold certain rows, and does not say which.

    What it takes it hands on to the real one.
    """

    def __init__(self, poison: Iterable[str]) -> None:
        self.poison = [text.encode() for text in poison]
        self.refused: dict[str, int] = {}
        self._numbers = count(1)
        self._uploads: dict[str, int] = {}
        self._backend: Any = None

    def around(self, backend: Any) -> Picky:
        """Stand before the real backend of one process."""
        self._backend = backend
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def upload(self, local: Path, name: str) -> str:
        lines = local.read_bytes().splitlines()
        file_id: str = await self._backend.upload(local, name)
        if any(text in line for text in self.poison for line in lines):
            self._uploads[file_id] = len(lines)
        return file_id

    async def create(self, order: CreateOrder) -> RemoteBatch:
        if order.input_file_id not in self._uploads:
            created: RemoteBatch = await self._backend.create(order)
            return created
        number = f"refused-{next(self._numbers)}"
        self.refused[number] = self._uploads[order.input_file_id]
        return self._shown(number)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        if batch_id in self.refused:
            return self._shown(batch_id)
        found: RemoteBatch = await self._backend.retrieve(batch_id)
        return found

    @staticmethod
    def _shown(batch_id: str) -> RemoteBatch:
        return RemoteBatch(batch_id, RemoteStatus.FAILED, "failed", errors=(BatchError("invalid_request"),))


def with_poison(bench: Callable[..., Bench], *poison: str, **values: Any) -> tuple[Bench, Picky]:
    provider = Picky(poison)
    values.setdefault("policy", RowRetry(max_rounds=0))
    return bench(texts=TEXTS, around_backend=provider.around, **values), provider


@pytest.mark.parametrize("row", [0, 7, 8, 15])
def test_the_one_row_at_fault_is_found_and_the_others_are_answered(
    row: int, bench: Callable[..., Bench]
) -> None:
    job, provider = with_poison(bench, f"number {row}.")
    done = job.run()
    assert done.counts["answered"] == 15
    assert job.open_letters() == {f"t-{row}": "invalid_request"}
    assert sorted(provider.refused.values()) == [1, 2, 4, 8, 16], "halved each time"
    assert job.server.summary()["charged"] == 15
    job.assert_accounted()
    (letter,) = job.letters()
    assert [a.charged for a in letter.attempts] == [False] * 4 + [True]


def test_several_rows_at_fault_in_several_batches_are_all_found(bench: Callable[..., Bench]) -> None:
    job, provider = with_poison(bench, "number 2.", "number 3.", "number 12.", options={"max_requests": 6})
    done = job.run()
    assert done.counts["answered"] == 13
    assert sorted(job.open_letters()) == ["t-12", "t-2", "t-3"]
    assert len(provider.refused) < 14
    job.assert_accounted()


def test_rows_that_were_withdrawn_meanwhile_do_not_stop_the_search(bench: Callable[..., Bench]) -> None:
    job, provider = with_poison(bench, "number 9.")
    job.call(lambda engine: engine.advance(1, job.order()))
    assert list(provider.refused.values()) == [16]
    texts = {k: v for k, v in TEXTS.items() if k not in ("t-0", "t-8")}
    cleared = job.clear(texts=texts)
    assert cleared.run().counts["answered"] == 13
    assert list(cleared.open_letters()) == ["t-9"]
    cleared.assert_accounted()


def test_a_provider_that_refuses_everything_is_not_asked_without_end(bench: Callable[..., Bench]) -> None:
    job, provider = with_poison(bench, "number", options={"max_requests": 2})
    job = replace(job, texts={f"t-{n}": f"ticket number {n}." for n in range(80)})
    halted = job.run()
    assert halted.state is JobState.HALTED and halted.halt_code == "BLLM-023"
    assert len(provider.refused) == 40 and job.letters() == []
    # Its cause is mended: a clear sends what is pending.
    provider.poison = []
    cleared = job.clear()
    assert cleared.run().counts["answered"] == 80
