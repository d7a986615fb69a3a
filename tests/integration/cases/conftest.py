"""A recorded case, the provider that plays it, and a bench with a job made from its input."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.jsonl import iter_lines
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.job_bench import CHAT, Bench
from tests.replay_provider import FILE_IDS, Replay, ReplayProvider, text_of

CASES = Path(__file__).resolve().parents[2] / "cases"


@dataclass(frozen=True)
class Case:
    """One folder of ``tests/cases``."""

    folder: Path

    @property
    def input(self) -> Path:
        return self.folder / "input.jsonl"

    def lines(self, name: str) -> list[bytes]:
        """The lines of a file that are not blank, without their ends."""
        return [line for _, line in iter_lines([(self.folder / name).read_bytes()])]

    def texts(self) -> dict[str, str]:
        """The case's ids and what their requests say."""
        return {line["custom_id"]: text_of(line) for line in map(json.loads, self.lines("input.jsonl"))}

    def batch(self) -> dict[str, Any]:
        """The batch object of the first exchange; completed with one file where the case shows none."""
        exchange = json.loads((self.folder / "case.json").read_text())["exchange"][0]
        shown = re.fullmatch(r"GET batch(?: \(1st\))? -> (\{.*\})", exchange)
        return dict(json.loads(shown[1])) if shown else {"status": "completed", "output_file_id": "file-out"}

    def replay(self, *, files: dict[str, bytes] | None = None, **changes: Any) -> Replay:
        """What the provider does, with other bytes by file id or other fields of the batch object."""
        batch = {k: v for k, v in (self.batch() | changes).items() if k not in ("id", "input_file_id")}
        found = {
            batch[field]: (self.folder / name).read_bytes()
            for field, name in FILE_IDS.items()
            if isinstance(batch.get(field), str) and batch[field] and (self.folder / name).exists()
        }
        return Replay(batch, {**found, **(files or {})}, self.texts())


@pytest.fixture
def case() -> Callable[[str], Case]:
    return lambda name: Case(CASES / name)


@pytest.fixture
def provider() -> Iterator[Callable[..., ReplayProvider]]:
    """Make providers that end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **values: stack.enter_context(ReplayProvider(*args, **values))


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger's file without jobs, made once: to make its tables takes longer than most jobs here."""
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    open_default_sqlite(path)
    return path


@pytest.fixture
def job(tmp_path: Path, empty_ledger: Path) -> Callable[..., Bench]:
    """Make a job of a ready-made request file (``path``), or of rows and a prompt (``rows``, ``prompt``)."""

    def make(
        server: ReplayProvider,
        path: Path | None = None,
        *,
        rows: Path | None = None,
        prompt: str = "{{ row.prompt }}",
        model: str = "m-1",
        **values: Any,
    ) -> Bench:
        if path is not None:
            ready = OpenAIBatchFile(str(path)).resolve({})
            values["drafts"] = ready.drafts
            values["template"] = RequestTemplate(ready.endpoint or CHAT, "", native=True)
        else:
            source, compiled = FileSource(str(rows), key="id").resolve({}), RowPrompt(prompt).resolve({})
            values["drafts"] = lambda: source.drafts(compiled)
            values["template"] = RequestTemplate(CHAT, model)
        database = tmp_path / "ledger.db"
        if not database.exists():
            shutil.copy(empty_ledger, database)
        ledger = open_default_sqlite(database)
        return Bench(server=server, ledger=ledger, folder=tmp_path / "workspace", **values)  # type: ignore[arg-type]

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write an input file."""

    def put(data: bytes) -> Path:
        path = tmp_path / "input.jsonl"
        path.write_bytes(data)
        return path

    return put
