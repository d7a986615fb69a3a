"""A job in a real ledger and workspace whose rows have failed, without a provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.files import encode_line, plan_job_path
from airflow_batch_llm.core.model import (
    Batch,
    BatchError,
    BatchPlan,
    DeadLetter,
    Job,
    JobKey,
    Plan,
    RemoteBatch,
    RemoteStatus,
    Request,
    RequestTemplate,
    Usage,
)
from airflow_batch_llm.core.spec import JobSpec
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from airflow_batch_llm.storage.row_index import DiskRowIndex
from airflow_batch_llm.storage.workspace import ObjectWorkspace


@dataclass(frozen=True)
class Desk:
    """A job with one batch for each list of (prompt, message) it was made from."""

    tools: Tools
    job: Job

    @property
    def ledger(self) -> SqlLedger:
        assert isinstance(self.tools.ledger, SqlLedger)
        return self.tools.ledger

    def batches(self) -> list[Batch]:
        return self.ledger.batches(self.job.job_id)

    def fail_batch(self, batch: Batch, code: str) -> None:
        """Let the provider refuse a batch as a whole."""
        uploaded = self.ledger.mark_uploaded(batch, "file-1")
        assert uploaded is not None
        going = self.ledger.enter_submitting(uploaded, revision=self.job.revision, lease_seconds=60)
        assert going is not None
        remote = RemoteBatch(f"batch-{batch.seq}", RemoteStatus.FAILED, "failed", errors=(BatchError(code),))
        sent = self.ledger.mark_submitted(going, remote)
        assert sent is not None and self.ledger.mark_ended(sent, remote) is not None

    def halted(self, code: str) -> Job:
        """Halt the job."""
        found = self.ledger.halt_job(self.job, code, "for a test")
        assert found is not None
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Callable[..., Desk]:
    """Return a maker: each batch is a list of (prompt, provider's message)."""

    def make(*batches: Sequence[tuple[str, str]], params: dict[str, object] | None = None) -> Desk:
        ledger = open_default_sqlite(tmp_path / "ledger.db")
        workspace = ObjectWorkspace(tmp_path / "ws")
        key = JobKey(ledger.namespace(), "tickets", "run-1", "labels.submit")
        backend = make_backend("generic", base_url="http://localhost:9/v1", api_key="", options={})
        tools = Tools(ledger, workspace, backend, JobSpec(key, "llm"), DiskRowIndex)
        template = RequestTemplate("/v1/chat/completions", "m-1", params or {})
        workspace.put(plan_job_path(tools.root, "p1"), msgspec.json.encode({"template": template}))
        job, _ = ledger.create_job(
            key,
            conn_id="llm",
            provider="generic",
            endpoint=template.endpoint,
            model="m-1",
            seen={},
            deadline_at=None,
        )
        plans, letters = [], []
        for seq, rows in enumerate(batches):
            plan, dead = _batch(tools, seq, rows)
            plans.append(plan)
            letters += dead
        pinned = ledger.pin_plan(job, Plan("p1", "digest", tuple(plans)))
        assert pinned is not None
        ledger.insert_dead_letters(letters)
        return Desk(tools, pinned)

    return make


def _batch(tools: Tools, seq: int, rows: Sequence[tuple[str, str]]) -> tuple[BatchPlan, list[DeadLetter]]:
    path = f"plan-p1/{seq}/requests.jsonl"
    lines, letters = [], []
    for number, (prompt, message) in enumerate(rows):
        name = f"r-{seq}-{number}"
        body = msgspec.json.encode({"messages": [{"role": "user", "content": prompt}]})
        lines.append(encode_line(Request(name, f"w-{name}", msgspec.Raw(body))))
        letters.append(_letter(tools.spec.key, name, path, message))
    info = tools.workspace.put(f"{tools.root}/{path}", b"".join(lines))
    plan = BatchPlan(seq, path, len(rows), info.size, info.sha256, info.size, "m-1", 1, 0)
    return plan, letters


def _letter(key: JobKey, name: str, path: str, message: str) -> DeadLetter:
    return DeadLetter(
        job_id=key.job_id,
        wire_id=f"w-{name}",
        custom_id=name,
        key=key,
        revision=1,
        provider="generic",
        model="m-1",
        verdict=Verdict.BAD_REQUEST,
        code="invalid_value",
        message=message,
        exhausted=False,
        request_path=path,
        attempts=(),
        usage=Usage(),
    )
