"""A job on the bench against a peer: the same engine, backend, ledger and workspace as everywhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.files import iter_outcomes
from airflow_batch_llm.core.ids import META_JOB
from airflow_batch_llm.core.model import BatchState, LetterState
from airflow_batch_llm.core.spec import Progress
from tests.job_bench import Bench


@dataclass
class PeerBench(Bench):
    """One job.

    :param dialect: the provider that its connection names.
    :param path: of the base URL at the peer.
    :param between: least seconds between two calls of the engine.
    """

    dialect: str = "generic"
    path: str = "/v1"
    between: float = 0.02

    def backend(self, server: Any) -> Any:
        return make_backend(
            self.dialect,
            base_url=server.root + self.path,
            api_key=server.api_key,
            options={"create_timeout_seconds": self.settings.create_timeout, **self.options},
        )

    def wait(self, progress: Progress) -> None:
        self.pause()
        super().wait(progress)

    def pause(self) -> None:
        """Let the time between two calls of the engine pass."""
        asyncio.run(asyncio.sleep(self.between))

    def remote(self) -> list[dict[str, Any]]:
        """Return the job's batches as the peer shows them, oldest first."""
        return [
            batch
            for batch in self.server.batches()
            if (batch.get("metadata") or {}).get(META_JOB) == self.key.job_id
        ]

    def creates(self) -> int:
        """How many batches of the job the peer holds."""
        return len(self.remote())

    def verdicts(self, *, round: int) -> dict[str, tuple[str, str]]:
        """Return custom_id -> (verdict, code) of a round."""
        return {
            outcome.custom_id: (outcome.verdict.value, outcome.code)
            for batch in self.ledger.batches(self.key.job_id, states=[BatchState.RECONCILED], round=round)
            for outcome in iter_outcomes(self.workspace, self.tools().root, batch)
        }

    def assert_accounted(self, ids: Any = None) -> None:
        """Every row is answered or dead, and none is both or twice."""
        wanted = sorted(ids if ids is not None else self.texts)
        answered = [answer.custom_id for answer in self.answers()]
        dead = [letter.custom_id for letter in self.letters(LetterState.OPEN, LetterState.REDRIVING)]
        assert sorted(answered + dead) == wanted

    def pending(self) -> list[str]:
        """Return the rows that are neither answered nor dead."""
        done = {answer.custom_id for answer in self.answers()}
        done |= {letter.custom_id for letter in self.letters()}
        return sorted(set(self.texts) - done)
