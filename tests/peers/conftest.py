"""The peers of a session, and benches in front of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.job_bench import CHAT
from tests.peers.bench import PeerBench
from tests.peers.chat_server import ChatServer
from tests.peers.servers import AIBrix, LLMock, Ogx, PeerServer

MakeBench = Callable[..., PeerBench]


@pytest.fixture(scope="session")
def chat() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture(scope="session")
def ogx(tmp_path_factory: pytest.TempPathFactory, chat: ChatServer) -> Iterator[Ogx]:
    with Ogx(tmp_path_factory.mktemp("ogx"), chat.root) as server:
        yield server


@pytest.fixture(scope="session")
def aibrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AIBrix]:
    with AIBrix(tmp_path_factory.mktemp("aibrix")) as server:
        yield server


@pytest.fixture(scope="session")
def llmock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMock]:
    with LLMock(tmp_path_factory.mktemp("llmock")) as server:
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    return open_default_sqlite(tmp_path / "ledger.db")


@pytest.fixture
def bench_for(ledger: SqlLedger, tmp_path: Path) -> Callable[..., PeerBench]:
    """Make benches: ``bench_for(server, texts=…)``."""

    def make(server: PeerServer, **values: Any) -> PeerBench:
        model = getattr(server, "model", "m-1")
        values.setdefault("template", RequestTemplate(CHAT, model, {"max_tokens": 100}))
        values.setdefault("run_id", f"run-{secrets.token_hex(4)}")
        return PeerBench(server=server, ledger=ledger, folder=tmp_path / "workspace", **values)

    return make
