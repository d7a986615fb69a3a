"""The engine at the moments between writing files and recording it, cut there on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from airflow_batch_llm.server import engine as engine_module
from airflow_batch_llm.server.batches import BatchStore
from airflow_batch_llm.server.protocols import dialects
from airflow_batch_llm.server.services import Services, open_services
from airflow_batch_llm.server.settings import ApiKey, ServerSettings
from tests.unit.server.api import ENDPOINT, lines


class Cut(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def services(tmp_path: Path, mocker: MockerFixture) -> Iterator[Services]:
    mocker.patch.object(engine_module, "_PAUSE", 0.0)
    found = open_services(ServerSettings(folder=tmp_path, key=ApiKey("k", "--api-key")), dialects())
    yield found
    found.engine.stop()


def run(services: Services, count: int) -> tuple[Any, bytes]:
    """Run a batch of ``count`` rows to its end; return it and its output."""
    temporary = services.files.new_temporary()
    temporary.write_bytes(lines(count))
    stored = services.files.add(temporary, filename="a.jsonl", purpose="batch", lines=count, life=3_600)
    batch = services.batches.create(
        dialect="openai",
        endpoint=ENDPOINT,
        input_file_id=stored.id,
        completion_window="24h",
        metadata=None,
        output_seconds=None,
    )
    services.engine.start()
    while batch.status != "completed":
        batch = services.batches.require(batch.id)
    return batch, services.files.path(batch.output_file_id or "").read_bytes()


def cut_first(mocker: MockerFixture, owner: Any, name: str, times: int) -> Any:
    """Let a method do nothing but raise, the first times it is called."""
    real = getattr(owner, name)
    left = [times]

    def cut(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise Cut
        return real(*args, **kwargs)

    return mocker.patch.object(owner, name, cut)


@pytest.mark.parametrize("point", ["advance", "finish"])
def test_lines_written_but_not_recorded_are_neither_lost_nor_repeated(
    services: Services, mocker: MockerFixture, point: str
) -> None:
    cut_first(mocker, BatchStore, point, 3)
    batch, output = run(services, 2_500)
    assert output.count(b"\n") == 2_500
    assert len({row.split(b'"custom_id":')[1].split(b",")[0] for row in output.splitlines()}) == 2_500
    assert services.charges.summary()["charged"] == batch.completed == 2_500


def test_charges_that_cannot_be_recorded_leave_the_batch_where_it_was(
    services: Services, mocker: MockerFixture
) -> None:
    cut_first(mocker, engine_module, "insert_charges", 2)
    batch, output = run(services, 1_500)
    assert (batch.rows_done, output.count(b"\n")) == (1_500, 1_500)
    assert services.charges.summary()["executed"] == 1_500
