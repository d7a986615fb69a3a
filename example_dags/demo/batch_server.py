"""The local batch server as a process of its own, and its admin calls."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from example_dags.demo.processes import Component, end_recorded_sessions, record_sessions, stop_all
from example_dags.demo.stack import free_port


class BatchServer:
    """Start, steer and end a local batch server.

    :param folder: where it keeps its state; a restart in the same folder goes on where it was.
    :param scenario: file that says how it misbehaves, None for not at all.
    :param arguments: more arguments of the command.
    :param start_timeout: seconds that it may take to start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        scenario: Path | None = None,
        arguments: tuple[str, ...] = (),
        start_timeout: float = 30.0,
    ) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = _new_key()
        self._arguments = [*arguments, *(["--scenario", str(scenario.resolve())] if scenario else [])]
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=30.0
        )
        self._sessions = self.folder / "sessions.json"
        self._start_timeout = start_timeout
        self.process: Component | None = None

    @property
    def database(self) -> Path:
        """Its SQLite file: batches, charge log."""
        return self.folder / "server.db"

    def connection(self, **extra: Any) -> str:
        """Return an Airflow connection to it, as ``AIRFLOW_CONN_…`` takes it."""
        return json.dumps(self._fields() | {"extra": {"dialect": "generic", **extra}})

    def connection_fields(self, **extra: Any) -> dict[str, str]:
        """Return an Airflow connection to it, as Airflow's API takes it."""
        return self._fields() | {"extra": json.dumps({"dialect": "generic", **extra})}

    def _fields(self) -> dict[str, str]:
        return {"conn_type": "batch_llm", "host": f"{self.url}/v1", "password": self.key}

    def __enter__(self) -> BatchServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> BatchServer:
        """Start it and wait until it answers.

        :raises RuntimeError: it ended or did not answer in time; the message holds the end of its log.
        """
        argv = [sys.executable, "-m", "airflow_batch_llm.server", "--port", str(self.port)]
        argv += ["--dir", str(self.folder), "--api-key", self.key, *self._arguments]
        end_recorded_sessions(self._sessions)
        self.process = Component("batch-server", argv, os.environ, self.folder / "server.log").start()
        record_sessions(self._sessions, [self.process])
        give_up = time.monotonic() + self._start_timeout
        while not self._answers():
            if not self.process.running or time.monotonic() > give_up:
                tail = self.process.log_tail()
                self.stop()
                raise RuntimeError(f"the batch server did not start:\n{tail}")
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        """End it. Safe to call twice."""
        if self.process is not None:
            stop_all([self.process], grace=3.0)
            self._sessions.unlink(missing_ok=True)

    def change_key(self) -> None:
        """Start it again with another key; the old one is refused from then on."""
        self.stop()
        self.key = _new_key()
        self._http.headers["Authorization"] = f"Bearer {self.key}"
        self.start()

    def release(self, batch_id: str) -> None:
        """Let a batch that is held go on."""
        self._http.post("/admin/release", params={"batch_id": batch_id}).raise_for_status()

    def put_scenario(self, scenario: Mapping[str, Any]) -> None:
        """Put another scenario in force for batches created from now on; ``{}`` lifts all faults."""
        self._http.put("/admin/scenario", json=scenario).raise_for_status()

    def batches(self) -> list[dict[str, Any]]:
        """Return its batches as OpenAI's list call shows them, newest first, 100 at most."""
        answer = self._http.get("/v1/batches", params={"limit": 100}).raise_for_status()
        return list(answer.json()["data"])

    def model(self) -> str:
        """Return the name of the model that answers, as the server's own list has it."""
        answer = self._http.get("/v1/models").raise_for_status()
        return str(answer.json()["data"][0]["id"])

    def _answers(self) -> bool:
        try:
            return self._http.get("/v1/batches", params={"limit": 1}).is_success
        except httpx.TransportError:
            return False


def _new_key() -> str:
    return f"demo-{secrets.token_hex(8)}"
