"""A bench whose connection speaks one of the protocols."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.contract.wires import FORMS, OPENAI, WIRES, Wire
from tests.integration.engine.conftest import airflow_db, running_server, server
from tests.integration.engine.server_since import ServerSince
from tests.job_bench import Bench

__all__ = ["airflow_db", "running_server", "server"]


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each protocol."""
    found: Wire = request.param
    return found


@pytest.fixture(params=FORMS, ids=lambda wire: wire.name)
def form(request: pytest.FixtureRequest) -> Wire:
    """Each protocol in each of its forms."""
    found: Wire = request.param
    return found


@pytest.fixture
def job(server: ServerSince, tmp_path: Path) -> Callable[..., Bench]:
    """Make a job over a wire."""
    ledgers = iter(range(1_000))

    def make(wire: Wire, **values: Any) -> Bench:
        folder = tmp_path / f"{next(ledgers)}"
        folder.mkdir()
        options = {**wire.options, **values.pop("options", {})}
        values.setdefault("template", wire.template())
        ledger = open_default_sqlite(folder / "ledger.db")
        return Bench(
            server=server, ledger=ledger, folder=folder / "files", provider=wire.provider, options=options,
            **values,
        )  # fmt: skip

    return make


@pytest.fixture
def over_openai(job: Callable[..., Bench]) -> Callable[..., Any]:
    """Return what a job comes to over OpenAI's protocol; the same job is not run twice."""

    def told(name: str, tell: Callable[[Wire], Any]) -> Any:
        if name not in _TOLD:
            _TOLD[name] = tell(OPENAI)
        return _TOLD[name]

    return told


_TOLD: dict[str, Any] = {}


@pytest.fixture
def creates(server: ServerSince) -> Callable[[Wire], int]:
    """Say how many batches the provider was asked to create, with or without a reply."""

    def count(wire: Wire) -> int:
        return sum(call["path"].endswith(wire.creates) for call in server.requests("POST"))

    return count
