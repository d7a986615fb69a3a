"""What came as the results of a batch, held against what its provider counts."""

from __future__ import annotations

from pathlib import Path

from airflow_batch_llm.core.model import Batch, RemoteBatch
from airflow_batch_llm.core.result_files import rows_in, wire_ids_of
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict

#: So many rows, each of which the provider counts as answered, may be missing from results with no other.
_MISSING_TOGETHER = 3
_OUTPUT = "output"


class Held:
    """What the result files of a batch hold of it. Where its provider counts no answers, nothing is held
    against the files, and they are not read for it.

    A page that a proxy puts in place of results, or rows that lost their ids, would make all of the batch
    missing, and be paid for again. Where so few answers are counted that each can be missing by itself, only
    what is no row counts as strange: the job would wait for a person for the sake of a row that never comes.
    """

    def __init__(self, tools: Tools, batch: Batch, remote: RemoteBatch) -> None:
        self._decode = tools.decoder_of(batch)
        self._answers = remote.counts.get("completed", 0)
        # A server that counts failed rows as answered counts them twice.
        self._counted = min(self._answers + remote.counts.get("failed", 0), batch.requests)
        self._ours = wire_ids_of(tools, batch) if self._answers else set()
        self._outputs = sum(file.kind == _OUTPUT for file in remote.files)
        self._found: set[str] = set()
        self._in_vain = self._odd = False

    def look_into(self, kind: str, local: Path) -> None:
        """Read a file: a single one with answers up to the first row of the batch, others whole."""
        if not self._answers:
            return
        found: set[str] = set()
        odd = False
        for row in rows_in(local, self._decode):
            if row.wire_id in self._ours:
                found.add(row.wire_id)
                if kind == _OUTPUT and self._outputs == 1:
                    break
            odd = odd or not row.wire_id or row.verdict is Verdict.UNKNOWN
        self._found |= found
        if not found:
            self._odd = self._odd or odd
            self._in_vain = self._in_vain or kind == _OUTPUT

    def lacks_answers(self) -> bool:
        """Say whether answers that the provider counts are in no file, more of them than can be missing."""
        if self._outputs and not self._in_vain:
            return False
        short = min(self._answers, self._counted - len(self._found))
        return short > _MISSING_TOGETHER or (self._odd and short > 0)
