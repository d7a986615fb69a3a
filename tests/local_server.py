"""A real local batch server for tests: its own process, its own folder, killed and started again at will.

::

    with LocalServer(tmp_path / "server") as server:
        server.set_scenario({"rows": [{"fault": "server_error", "times": 1}]})
        ...                                      # use server.url and server.api_key
        server.kill9(); server.restart()         # same port, same folder
        assert server.summary()["answered_twice"] == 0
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


class LocalServer:
    """``python -m airflow_batch_llm.server`` on a free loopback port.

    :param folder: the server's state; None makes a temporary one.
    :param args: further arguments, such as ``"--max-requests", "3"``.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        api_key: str = "test-key",
        args: tuple[str, ...] = (),
        scenario: Mapping[str, Any] | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="batch-llm-server-") if folder is None else None
        self.folder = folder if folder is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self.api_key = api_key
        self.port = _free_port()
        self._args = args
        self._scenario = scenario
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(headers={"Authorization": f"Bearer {api_key}"}, timeout=60)

    @property
    def url(self) -> str:
        """Return the base URL for clients, with ``/v1``."""
        return f"{self._root}/v1"

    def url_of(self, protocol: str) -> str:
        """Return the base URL of a protocol: openai, azure, anthropic, gemini or mistral."""
        return self.url if protocol == "openai" else f"{self._root}/{protocol}"

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Return all that the server has printed so far, over all its starts."""
        return self._log_path.read_text()

    def __enter__(self) -> Self:
        self.start()
        if self._scenario is not None:
            self.set_scenario(self._scenario)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._client.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- the process ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Start it and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "airflow_batch_llm.server", "--port", str(self.port)]
        command += ["--dir", str(self.folder / "state"), *self._args]
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "BATCH_LLM_SERVER_KEY": self.api_key},
            )
        self._wait_until_healthy()

    def stop(self) -> int | None:
        """Ask it to end (SIGTERM) and return its exit status; None where none runs."""
        return self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill it, and whatever it started, at once."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End it, if it runs, and start it on the same port and folder."""
        self.stop()
        self.start()

    # -- administration ------------------------------------------------------------------------------
    def set_scenario(self, scenario: Mapping[str, Any]) -> None:
        """Put a scenario in force; its counters start at nothing."""
        self._client.put(f"{self._root}/admin/scenario", json=dict(scenario)).raise_for_status()

    def charges(self, batch_id: str | None = None) -> list[dict[str, Any]]:
        """Return every executed request: batch_id, custom_id, body_sha256, status, charged, fault, …"""
        return self._lines("charges", _by(batch_id))

    def summary(self) -> dict[str, int]:
        """Return the charge log summed up: executed, charged, answered, answered_twice, …"""
        found: dict[str, int] = self._get("charges", {"summary": "1"}).json()
        return found

    def requests(self, method: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """Return the calls made to the APIs, in order; ``status`` 0: no reply. ``path`` as in /v1/batches."""
        return [
            call
            for call in self._lines("requests")
            if method in (None, call["method"]) and path in (None, call["path"])
        ]

    def batches(self) -> list[dict[str, Any]]:
        """Return all batches, newest first, with the server's own columns."""
        return self._lines("batches")

    def release(self, batch_id: str | None = None) -> int:
        """End the waits (``pace``), present and to come, of unfinished batches; return how many those are."""
        response = self._client.post(f"{self._root}/admin/release", params=_by(batch_id)).raise_for_status()
        released: int = response.json()["released"]
        return released

    # -- inside --------------------------------------------------------------------------------------
    @property
    def _root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _log_path(self) -> Path:
        return self.folder / "server.log"

    def _get(self, name: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        return self._client.get(f"{self._root}/admin/{name}", params=params).raise_for_status()

    def _lines(self, name: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._get(name, params).content.split(b"\n") if line]

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self.log}")
            try:
                self._client.get(f"{self._root}/health").raise_for_status()
                return
            except httpx.TransportError:
                time.sleep(0.02)
        self.kill9()
        raise RuntimeError(f"the server did not answer within {_START_SECONDS} s:\n{self.log}")

    def _end(self, number: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def _by(batch_id: str | None) -> dict[str, str]:
    """Name a batch as the server does: without the kind that some protocols put before its id."""
    return {} if batch_id is None else {"batch_id": batch_id.rpartition("/")[2]}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
