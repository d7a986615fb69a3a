"""What comes in place of results: never taken for rows that are missing, which would be paid for again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, RemoteBatch, ResultFile
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import TransferError
from tests.integration.contract.wires import Wire
from tests.job_bench import QUICK, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(4)}
#: In place of a result file: a page of a proxy, an error object, rows that lost their ids.
STRANGE = {
    "page": b"<html><body>Back in a minute.</body></html>\n",
    "error": b'{"error": {"code": 503, "message": "try again"}}\n',
    "rows without ids": b'{"response": {"status_code": 200, "body": {"choices": []}}}\n' * 4,
    "nothing": b"",
}


class Meddling:
    """A way to the provider on which results are replaced."""

    def __init__(self, backend: Any, content: bytes) -> None:
        self._backend, self._content = backend, content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
        local.write_bytes(self._content)


@pytest.mark.parametrize("what", STRANGE)
def test_what_holds_no_row_of_the_batch_is_no_result_file(
    what: str, wire: Wire, job: Callable[..., Bench]
) -> None:
    made = job(wire, texts=TEXTS)
    meddled = replace(made, around_backend=lambda backend: Meddling(backend, STRANGE[what]))
    for _ in range(2):
        with pytest.raises(TransferError, match="holds no row of it.* batch-llm hand-in"):
            meddled.run()
    assert [batch.state for batch in made.batches()] == [BatchState.ENDED]
    assert made.run().counts["answered"] == len(TEXTS)
    assert [batch.attempt for batch in made.batches()] == [1]
    made.assert_accounted()


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_rows_that_are_all_missing_are_asked_for_again_without_a_person(
    count: int, wire: Wire, job: Callable[..., Bench]
) -> None:
    """They are a round of their own where they went missing before; for ever, they are dead letters."""
    texts = dict(list(TEXTS.items())[:count])
    made = job(wire, texts=texts, policy=RowRetry(max_rounds=1), settings=replace(QUICK, gone_after=0.0))
    made.server.set_scenario({"rows": [{"fault": "missing"}]})
    settled = made.run()
    assert (settled.counts.get("answered", 0), settled.counts["dead"]) == (0, count)
    assert {(one.verdict, len(one.attempts)) for one in made.letters()} == {(Verdict.MISSING, 2)}


@pytest.mark.parametrize("what", ["page", "error", "rows without ids"])
def test_what_is_no_row_is_no_result_of_a_single_row_either(
    what: str, wire: Wire, job: Callable[..., Bench]
) -> None:
    made = job(wire, texts={"t-0": TEXTS["t-0"]})
    meddled = replace(made, around_backend=lambda backend: Meddling(backend, STRANGE[what]))
    with pytest.raises(TransferError, match="holds no row of it"):
        meddled.run()
    assert made.run().counts["answered"] == 1
    assert [batch.attempt for batch in made.batches()] == [1]
    made.assert_accounted()
