"""What comes in place of results: never taken for rows that are missing, which would be paid for again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, RemoteBatch, ResultFile
from airflow_batch_llm.exceptions import TransferError
from tests.integration.contract.wires import Wire
from tests.job_bench import Bench

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
