"""The thread that moves batches: validating -> in_progress -> finalizing -> completed, and other ways out.

A batch is worked on in pieces. Each piece appends its result lines to two part files and then commits
progress and charges in one transaction. A server that was killed cuts the parts back to what was
committed and goes on from there: a row is charged once a batch, and no line is lost or repeated.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from airflow_batch_llm.server.batches import BatchStore, Progress, StoredBatch
from airflow_batch_llm.server.charge_log import insert_charges, withhold_charges
from airflow_batch_llm.server.database import Database
from airflow_batch_llm.server.faults import RowFaults, ScenarioStore
from airflow_batch_llm.server.files import DEFAULT_LIFE, FileStore, insert_file
from airflow_batch_llm.server.result_files import write_result_file
from airflow_batch_llm.server.rows import Piece, RowRunner
from airflow_batch_llm.server.scenario import Scenario
from airflow_batch_llm.server.settings import ServerLimits
from airflow_batch_llm.server.upstreams import UpstreamClosed, endpoint_of
from airflow_batch_llm.server.validation import check_file
from airflow_batch_llm.server.wire import Dialect, LineError, Upstream

log = logging.getLogger(__name__)

_PIECE_BYTES = 4_000_000
#: Seconds before a batch that raised something unforeseen (a full disk) is tried again.
_PAUSE = 5.0
#: Seconds without a look at the batches; whoever changes one wakes the engine.
_LONGEST_WAIT = 3_600.0


class Engine:
    """Works on all unfinished batches, a piece of each in turn."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        files: FileStore,
        scenarios: ScenarioStore,
        batches: BatchStore,
        *,
        dialects: Mapping[str, Dialect],
        upstream: Upstream,
        limits: ServerLimits,
    ) -> None:
        self._parts = folder / "parts"
        self._parts.mkdir(parents=True, exist_ok=True)
        self._db = database
        self._files = files
        self._scenarios = scenarios
        self._batches = batches
        self._dialects = dialects
        self._upstream = upstream
        self._limits = limits
        self._paused: dict[str, float] = {}
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="batch-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there may be something to do."""
        self._woken.set()

    def stop(self, timeout: float = 10.0) -> None:
        """Stop after the piece at hand. One that takes longer is given up; nothing of it is recorded."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout)
        self._upstream.close()

    def _run(self) -> None:
        while not self._stopping:
            self._woken.clear()
            try:
                wait = self._turn()
            except Exception as e:  # the thread must outlive a database that cannot be read for a while
                log.error("the engine: %s; tried again in %.0f s", type(e).__name__, _PAUSE)
                wait = _PAUSE
            if wait and not self._stopping:
                self._woken.wait(wait)

    def _turn(self) -> float:
        """Take one step with each batch that can move; return how many seconds there is nothing to do."""
        now = time.time()
        due = [(max(b.next_at, self._paused.get(b.id, 0.0)), b) for b in self._batches.unfinished()]
        ready = [batch for at, batch in due if at <= now]
        for batch in ready:
            if self._stopping:
                break
            self._work_safely(batch)
        return (
            0.0
            if ready
            else min((at - now for at, _ in due if at - now < _LONGEST_WAIT), default=_LONGEST_WAIT)
        )

    def _work_safely(self, batch: StoredBatch) -> None:
        try:
            self._work(batch)
        except UpstreamClosed:
            return
        except Exception as e:  # the thread must outlive a full disk; the batch is tried again
            self._paused[batch.id] = time.time() + _PAUSE
            log.error("batch %s: %s; tried again in %.0f s", batch.id, type(e).__name__, _PAUSE)
        else:
            self._paused.pop(batch.id, None)

    def _work(self, batch: StoredBatch) -> None:
        """Take one step with a batch."""
        scenario = self._scenarios.get(batch.scenario)
        if batch.status == "validating":
            self._validate(batch, scenario)
        elif batch.status == "finalizing" or (
            batch.status == "cancelling" and batch.rows_done == batch.total
        ):
            self._finish(batch, scenario)
        elif batch.status == "cancelling" and scenario.pace.cancel_completes:
            self._execute_piece(batch, scenario, batch.total - batch.rows_done)
        elif batch.status == "cancelling":
            self._leave_out_piece(batch, "batch_cancelled", scenario)
        else:
            self._progress(batch, scenario)

    # -- validating ----------------------------------------------------------------------------------
    def _validate(self, batch: StoredBatch, scenario: Scenario) -> None:
        rule = batch.rule
        if rule is not None and rule.fault == "queue_full":
            error = LineError("token_limit_exceeded", "Enqueued token limit reached.")
        elif rule is not None and rule.fault == "fail_validation":
            error = LineError(rule.code, "The scenario refuses this batch.", rule.param, rule.line)
        else:
            stored = self._files.get(batch.input_file_id)
            if stored is not None and stored.purpose == "batch" and stored.dialect == batch.dialect:
                return self._check(batch, scenario)
            error = LineError(
                "invalid_request", "The input file does not exist or is not for batches.", "file_id"
            )
        self._batches.fail(batch, error)
        self._files.sweep(batch.input_file_id)

    def _check(self, batch: StoredBatch, scenario: Scenario) -> None:
        checker = self._dialects[batch.dialect].checker(batch.endpoint, scenario.unknown_models)
        total, error = check_file(
            self._files.path(batch.input_file_id), checker, self._limits.of(batch.dialect)
        )
        if error is None:
            self._batches.begin(batch, total=total, model=checker.model)
        else:
            self._batches.fail(batch, error)
            self._files.sweep(batch.input_file_id)

    # -- in progress ---------------------------------------------------------------------------------
    def _progress(self, batch: StoredBatch, scenario: Scenario) -> None:
        """Run rows up to the next point where something happens: a wait, the expiry, the end."""
        rule, pace = batch.rule, scenario.pace
        stops = [batch.total]
        if not batch.held and pace.seconds:
            stop = math.ceil(pace.hold_at * batch.total)
            if batch.rows_done >= stop:
                self._batches.hold(batch, (batch.in_progress_at or batch.created_at) + pace.seconds)
                return
            stops.append(stop)
        if batch.ending is None and rule is not None and rule.fault == "expire":
            stop = math.ceil(rule.after * batch.total)
            if batch.rows_done >= stop:
                self._batches.expire(batch)
                return
            stops.append(stop)
        if batch.rows_done == batch.total:
            self._batches.finalize(batch)
        elif batch.ending == "expired":
            self._leave_out_piece(batch, "batch_expired", scenario)
        else:
            self._execute_piece(batch, scenario, min(stops) - batch.rows_done)

    def _execute_piece(self, batch: StoredBatch, scenario: Scenario, most: int) -> None:
        lines = self._read(batch, min(most, self._upstream.piece))
        faults = RowFaults(self._db.connection(), batch.scenario, scenario)
        piece = self._runner(batch, scenario, faults).execute(
            batch.rows_done + 1, [line.removesuffix(b"\n") for line in lines]
        )
        self._commit(batch, piece, lines, faults)

    def _leave_out_piece(self, batch: StoredBatch, code: str, scenario: Scenario) -> None:
        lines = self._read(batch, 1_000)
        faults = RowFaults(self._db.connection(), batch.scenario, scenario)
        piece = self._runner(batch, scenario, faults).leave_out(
            batch.rows_done + 1, [line.removesuffix(b"\n") for line in lines], code
        )
        self._commit(batch, piece, lines, faults)

    def _runner(self, batch: StoredBatch, scenario: Scenario, faults: RowFaults) -> RowRunner:
        return RowRunner(
            batch,
            self._dialects[batch.dialect],
            endpoint_of(batch.endpoint),
            self._upstream,
            faults,
            failures_in_output=scenario.results.failures_in_output,
        )

    def _read(self, batch: StoredBatch, most: int) -> list[bytes]:
        """Return the next lines with their ends."""
        lines: list[bytes] = []
        size = 0
        with self._files.path(batch.input_file_id).open("rb") as file:
            file.seek(batch.input_offset)
            while len(lines) < most and size < _PIECE_BYTES and (line := file.readline()):
                size += len(line)
                lines.append(line)
        return lines

    def _commit(self, batch: StoredBatch, piece: Piece, lines: list[bytes], faults: RowFaults) -> None:
        """Append to the parts, then record it; a batch that was cancelled meanwhile records nothing.

        :param lines: from the first one that the piece is about; it may have left the last ones.
        """
        _append(self._part(batch, "output"), batch.output_bytes, piece.output)
        _append(self._part(batch, "error"), batch.error_bytes, piece.errors)
        progress = Progress(
            piece.rows,
            batch.input_offset + sum(map(len, lines[: piece.rows])),
            len(piece.output),
            len(piece.errors),
            piece.completed,
            piece.failed,
            piece.input_tokens,
            piece.output_tokens,
        )
        with self._db.write() as connection:
            if self._batches.advance(connection, batch, progress):
                insert_charges(connection, piece.charges, time.time())
                faults.save(connection)

    # -- the end -------------------------------------------------------------------------------------
    def _finish(self, batch: StoredBatch, scenario: Scenario) -> None:
        """Put the result files in place, then record files and end in one transaction."""
        made: list[tuple[str, str]] = []
        dialect = self._dialects[batch.dialect]
        loses = batch.ending == "cancelled" and not dialect.one_file
        lost = min(scenario.pace.cancel_loses, batch.completed) if loses else 0
        for kind, size in (("output", batch.output_bytes), ("error", batch.error_bytes)):
            empty = scenario.absent_file_id == "empty_file" or (kind == "error" and batch.has_error_file)
            if batch.withheld or (not size and not empty):
                continue
            file_id = batch.result_id(kind)
            part = self._part(batch, kind)
            _append(part, size, b"")
            temporary = self._files.new_temporary()
            lost_here = lost if kind == "output" else 0
            write_result_file(part, temporary, scenario.results, dialect, lost=lost_here)
            os.replace(temporary, self._files.path(file_id))
            made.append((kind, file_id))
        ids = dict(made)
        with self._db.write() as connection:
            if not self._batches.finish(
                connection, batch, output=ids.get("output"), errors=ids.get("error"), lost=lost
            ):
                return
            if batch.withheld:
                withhold_charges(connection, batch.seq)
            for kind, file_id in made:
                insert_file(
                    connection,
                    file_id,
                    filename=f"{batch.id}_{kind}.jsonl",
                    purpose="batch_output",
                    size=self._files.path(file_id).stat().st_size,
                    lines=0,
                    life=batch.output_seconds or DEFAULT_LIFE,
                    dialect=batch.dialect,
                )
        for kind in ("output", "error"):
            self._part(batch, kind).unlink(missing_ok=True)
        self._files.sweep(batch.input_file_id)

    def _part(self, batch: StoredBatch, kind: str) -> Path:
        return self._parts / f"{batch.id}.{kind}"


def _append(path: Path, committed: int, data: bytes | bytearray) -> None:
    """Append behind what was committed; what a killed process wrote behind that is cut off."""
    with path.open("ab") as file:
        if file.tell() != committed:
            file.truncate(committed)
        file.write(data)
