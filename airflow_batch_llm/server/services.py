"""Everything behind the HTTP faces, put together from the settings."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.batches import BatchStore
from airflow_batch_llm.server.charge_log import ChargeLog
from airflow_batch_llm.server.database import Database
from airflow_batch_llm.server.engine import Engine
from airflow_batch_llm.server.faults import ScenarioStore
from airflow_batch_llm.server.files import FileStore
from airflow_batch_llm.server.request_log import RequestLog
from airflow_batch_llm.server.scenario import parse_scenario
from airflow_batch_llm.server.settings import UPSTREAM_KEY_VARIABLE, ServerLimits, ServerSettings
from airflow_batch_llm.server.upstreams import ForwardingUpstream, SimulatedUpstream
from airflow_batch_llm.server.wire import Dialect, Upstream


@dataclass(frozen=True, slots=True)
class Services:
    """The stores, the engine and the upstream of one server."""

    limits: ServerLimits
    files: FileStore
    batches: BatchStore
    scenarios: ScenarioStore
    charges: ChargeLog
    requests: RequestLog
    engine: Engine
    upstream: Upstream


def open_services(settings: ServerSettings, dialects: Mapping[str, Dialect]) -> Services:
    """Open the folder, take up what is there, put the scenario given in force. Starts nothing.

    :raises ConfigurationError: another server uses the folder, or the scenario is wrong or cannot be read.
    """
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _lock(settings.folder)
    database = Database(settings.folder / "server.db")
    files = FileStore(database, settings.folder)
    scenarios = ScenarioStore(database)
    if settings.scenario is not None:
        _put_scenario(scenarios, settings.scenario)
    batches = BatchStore(database, scenarios)
    upstream = _upstream(settings)
    files.sweep_all()
    engine = Engine(
        settings.folder,
        database,
        files,
        scenarios,
        batches,
        dialects=dialects,
        upstream=upstream,
        limits=settings.limits,
    )
    return Services(
        settings.limits,
        files,
        batches,
        scenarios,
        ChargeLog(database),
        RequestLog(database),
        engine,
        upstream,
    )


def _lock(folder: Path) -> None:
    """Keep a second server out, for as long as this process lives."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        os.close(handle)
        raise ConfigurationError(f"another server is using {folder}") from e


def _put_scenario(scenarios: ScenarioStore, path: Path) -> None:
    """Put the file's scenario in force, unless it is already: a restart must not start counters again."""
    try:
        wanted = parse_scenario(path.read_bytes())
    except OSError as e:
        raise ConfigurationError(f"scenario: {path} cannot be read ({e.strerror})") from e
    if scenarios.current()[1] != wanted:
        scenarios.put(wanted)


def _upstream(settings: ServerSettings) -> Upstream:
    if settings.local_model is not None:
        # Only here: the module needs what the extra `local` installs.
        from airflow_batch_llm.server.local_model import LocalModelUpstream

        return LocalModelUpstream(settings.local_model, timeout=settings.upstream_timeout)
    if settings.upstream is None:
        return SimulatedUpstream()
    return ForwardingUpstream(
        settings.upstream,
        key=os.environ.get(UPSTREAM_KEY_VARIABLE),
        concurrency=settings.upstream_concurrency,
        timeout=settings.upstream_timeout,
    )
