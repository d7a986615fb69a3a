"""What ``batch-llm doctor`` looks at without sending anything that is paid for."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

from airflow_batch_llm.cli.providers import endpoint_names
from airflow_batch_llm.cli.refused import refused_for
from airflow_batch_llm.cli.session import open_workspace
from airflow_batch_llm.cli.target import open_target
from airflow_batch_llm.core.holds import next_try, release_command
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.exceptions import BatchLLMError, LedgerSchemaError, WorkspaceError
from airflow_batch_llm.storage.engine import describe, writing
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.ledger_facts import read_facts
from airflow_batch_llm.storage.migrate import HEAD_REVISION
from airflow_batch_llm.storage.schema import meta

if TYPE_CHECKING:
    from airflow_batch_llm.hooks.account import Account
    from airflow_batch_llm.storage.workspace import ObjectWorkspace

#: Leases, deadlines and waits go by the ledger's clock, tokens of keys and certificates by this one.
MOST_SHIFT_SECONDS = 30.0
#: Jobs that run, the newest first, of which it is seen whether they were refused.
_MOST_JOBS = 200


class State(StrEnum):
    """``ok``, ``fault`` (a job would fail), ``look`` (a person should), ``skipped`` (an earlier fault)."""

    OK = "ok"
    FAULT = "fault"
    LOOK = "look"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    :param do: what to do about it.
    :param code: of the error, as the runbook lists it.
    :param numbers: further facts for ``--json``.
    """

    check: str
    state: State
    found: str
    do: str = ""
    code: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Describe it for ``--json``."""
        told = {"check": self.check, "state": self.state.value, "found": self.found}
        return {**told, "do": self.do or None, "code": self.code or None, **self.numbers}


def fault_of(check: str, error: BatchLLMError, do: str = "") -> Finding:
    """Return the finding that an error of ours stands for."""
    return Finding(check, State.FAULT, str(error), do or f"docs/runbook.md has {error.code}", error.code)


# -- ledger ----------------------------------------------------------------------------------------
class _Undo(Exception):
    """Takes back what a trial wrote."""


def check_ledger(args: argparse.Namespace) -> tuple[Finding, SqlLedger | None]:
    """Open the ledger as tasks do, or the one that the arguments name, and write to it."""
    try:
        ledger = _open_ledger(args)
        namespace = ledger.namespace()
        _try_to_write(ledger)
    except LedgerSchemaError as error:
        return fault_of("ledger", error, "batch-llm db migrate, with the same ledger"), None
    except BatchLLMError as error:
        return fault_of("ledger", error), None
    except SQLAlchemyError as error:
        found = f"the ledger cannot be written ({type(error).__name__})"
        do = "give its user the right to insert, update and delete in the tables (docs/ledger.md)"
        return Finding("ledger", State.FAULT, found, do), None
    where = describe(ledger.engine.url)
    found = f"{where} can be written, schema {HEAD_REVISION}, namespace {namespace}"
    return Finding("ledger", State.OK, found, numbers={"schema": HEAD_REVISION}), ledger


def _open_ledger(args: argparse.Namespace) -> SqlLedger:
    if args.url is not None or args.conn is not None or args.schema is not None:
        return open_target(args)
    from airflow_batch_llm.hooks import state

    # As a task opens it: makes the default file, and refuses local state with executors on other hosts.
    return state.open_ledger()


def _try_to_write(ledger: SqlLedger) -> None:
    try:
        with writing(ledger.engine) as connection:
            connection.execute(insert(meta).values(name=f"doctor-{secrets.token_hex(4)}", value=""))
            raise _Undo
    except _Undo:
        return


# -- workspace -------------------------------------------------------------------------------------
def check_workspace(ledger: SqlLedger | None) -> tuple[Finding, ObjectWorkspace | None]:
    """Write a file, read it back, delete it; and look whether the ledger's newest job is there."""
    folder = f"doctor-{secrets.token_hex(8)}"
    data = secrets.token_bytes(64)
    try:
        workspace = open_workspace()
        info = workspace.put(f"{folder}/trial", data)
        with workspace.open_checked(f"{folder}/trial", info.size, info.sha256) as file:
            same = file.read() == data
        workspace.delete_tree(folder)
        if not same or workspace.exists(f"{folder}/trial"):
            raise WorkspaceError(f"{workspace.url(folder)}: what is written is not what is read, or stays")
        absent = _newest_job_elsewhere(workspace, ledger)
    except BatchLLMError as error:
        do = "give the workers' account the right to write, read and delete there, or name another folder in "
        return fault_of("workspace", error, f"{do}[batch_llm] workspace"), None
    where = workspace.url(folder).removesuffix(f"/{folder}")
    if absent is not None:
        found = f"{where} can be written, but the newest job of the ledger, {absent}, is not in it"
        do = "see that [batch_llm] workspace is the same here as for the workers"
        return Finding("workspace", State.LOOK, found, do), workspace
    return Finding("workspace", State.OK, f"{where}: written, read back, deleted"), workspace


def _newest_job_elsewhere(workspace: ObjectWorkspace, ledger: SqlLedger | None) -> str | None:
    """Return the newest job that has rows and no folder in this workspace."""
    if ledger is None:
        return None
    for job in ledger.jobs(states=[JobState.RUNNING, JobState.HALTED, JobState.SETTLED], limit=1):
        if job.plan_id is not None and not workspace.list(workspace.job_root(job.key)):
            return job.job_id
    return None


# -- connection ------------------------------------------------------------------------------------
def check_connection(conn_id: str) -> list[Finding]:
    """Read the connection, make the cheapest call that needs its key, tell limits and capabilities."""
    from airflow_batch_llm.hooks.batch_llm import connection_defaults
    from airflow_batch_llm.hooks.connections import find_connection

    try:
        connection = find_connection(conn_id)
        account = connection_defaults(connection)
    except BatchLLMError as error:
        return [fault_of("connection", error), _unasked("key"), _unasked("limits"), _unasked("protocol")]
    address = account.base_url or "the provider's own address"
    found = f"{conn_id}: type {connection.conn_type}, dialect {account.provider}, {address}"
    found += f", key {'set' if account.api_key else 'not set'}, model {account.model or 'not set'}"
    return [Finding("connection", State.OK, found), *_ask(account)]


def _unasked(check: str) -> Finding:
    return Finding(check, State.SKIPPED, "the connection cannot be used")


def _ask(account: Account) -> Iterator[Finding]:
    from airflow_batch_llm.backends import find_provider
    from airflow_batch_llm.hooks.batch_llm import backend_of

    async def probe() -> tuple[str, Any]:
        backend = backend_of(account, max_retries=0)
        try:
            return await backend.probe(), backend.limits
        finally:
            await backend.aclose()

    try:
        said, limits = asyncio.run(probe())
    except BatchLLMError as error:
        yield fault_of(
            "key", error, f"see Admin > Connections > {account.conn_id}: dialect, base URL and key"
        )
        yield _unasked("limits")
    else:
        yield Finding("key", State.OK, said)
        numbers = {name: getattr(limits, name) for name in ("max_requests", "max_bytes", "max_line_bytes")}
        found = (
            f"a batch: {limits.max_requests:,} requests, {limits.max_bytes:,} bytes, a request: "
            f"{limits.max_line_bytes:,} bytes, window {limits.window_seconds / 3600:g} h"
        )
        yield Finding("limits", State.OK, found, numbers=numbers)
    row = find_provider(account.provider)
    found = f"{row.name}, protocol {row.protocol}: {', '.join(endpoint_names(row))}"
    found += f"; {row.tested}; a batch whose create call had no reply is found by {row.found_by}"
    if row.marks_batches:
        yield Finding("protocol", State.OK, found)
    else:
        do = "where several batches fit, a person decides (batch-llm adopt or abandon)"
        yield Finding("protocol", State.LOOK, found, do)


# -- clock and what waits --------------------------------------------------------------------------
def check_clock(ledger: SqlLedger) -> Finding:
    """Compare the clock of the ledger's database with this machine's."""
    try:
        before = time.time()
        there = ledger.now()
        shift = there - (before + time.time()) / 2
    except BatchLLMError as error:
        return fault_of("clock", error)
    numbers = {"shift_seconds": round(shift, 3)}
    if abs(shift) <= MOST_SHIFT_SECONDS:
        found = f"the ledger's clock and this machine's are {abs(shift):.1f} s apart"
        return Finding("clock", State.OK, found, numbers=numbers)
    found = f"the ledger's clock is {abs(shift):.0f} s {'ahead of' if shift > 0 else 'behind'} this machine's"
    do = "let both go by the same time server (NTP): deadlines and waits go by the ledger's"
    return Finding("clock", State.FAULT, found, do, numbers=numbers)


def check_waiting(ledger: SqlLedger, conn_id: str) -> Iterator[Finding]:
    """Tell what waits for a person: held connections, jobs that are halted or were refused, doubtful batches,
    open dead letters."""
    try:
        facts = read_facts(ledger)
        running = ledger.jobs(states=[JobState.RUNNING], limit=_MOST_JOBS)
        refused = sum(refused_for(ledger, job, ledger.batches(job.job_id)) is not None for job in running)
    except BatchLLMError as error:
        yield fault_of("waiting", error)
        return
    stuck = sum(connection.stuck for connection in facts.connections.values())
    pending = sum(connection.pending for connection in facts.connections.values())
    letters = sum(facts.open_letters.values())
    if conn_id in facts.held:
        found = f"connection {conn_id} is held: nothing is sent with it"
        do = f"batch-llm holds says why; once it is mended, {release_command(conn_id)}"
        if (hold := ledger.get_hold(conn_id)) is not None:
            found += f"; {next_try(hold)}"
        yield Finding("hold", State.LOOK, found, do)
    waits = [
        (facts.halted, "jobs are halted", "batch-llm jobs --state halted, then batch-llm show JOB"),
        (refused, "jobs were refused at once", "batch-llm jobs --state running, then batch-llm show JOB"),
        (stuck, "create calls are in doubt", "clear the job's retry task, or batch-llm adopt or abandon"),
        (letters, "dead letters are open", "batch-llm dead-letters list --dag …; re-drive or discard them"),
    ]
    for count, what, do in waits:
        if count:
            yield Finding("waiting", State.LOOK, f"{count} {what}", do, numbers={"count": count})
    if not any(count for count, _, _ in waits) and conn_id not in facts.held:
        found = f"nothing waits for a person; {pending} rows are under way"
        yield Finding("waiting", State.OK, found, numbers={"pending": pending})
