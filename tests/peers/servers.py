"""The peers as processes: each in its own folder, on a free loopback port, killed and started at will."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import httpx

from tests.peers.install import PEERS, ROOT

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0


class PeerServer:
    """A peer on a free loopback port.

    :param folder: its home: state, settings, log.
    :param args: further arguments of its program.
    """

    name: ClassVar[str]
    health: ClassVar[str]
    api_key = "no-key-needed"

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        self.port = _free_port()
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.root, timeout=60)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for clients, with ``/v1``."""
        return f"{self.root}/v1"

    @property
    def log(self) -> str:
        """All that it has printed so far."""
        return (self.folder / "peer.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.http.close()

    # -- the process ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Start it and wait until it answers.

        :raises RuntimeError: it is not installed, or does not come up; the message has the end of its log.
        """
        program = PEERS[self.name].program_in(ROOT / ".peers")
        if not program.exists():
            raise RuntimeError(f"peer {self.name} is not installed: run `make test-peers`")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "peer.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), *self.command(), *self._args],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
                env=self._environment(),
            )
        self._wait_until_healthy()

    def command(self) -> list[str]:
        """Return the arguments after the program's name."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return what the peer is told beside its arguments."""
        return {}

    def stop(self) -> None:
        """Ask it to end."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill it, and whatever it started, at once."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same port and folder."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """Let it stand still (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    # -- what it holds -------------------------------------------------------------------------------
    def batches(self) -> list[dict[str, Any]]:
        """Return its batches, oldest first, as it shows them."""
        found: dict[str, dict[str, Any]] = {}
        after: str | None = None
        while True:
            reply = self.http.get("/v1/batches", params={"limit": 100} | ({"after": after} if after else {}))
            page = reply.raise_for_status().json()["data"]
            fresh = [batch for batch in page if batch["id"] not in found]
            if not fresh:
                return list(reversed(found.values()))
            found |= {batch["id"]: batch for batch in fresh}
            after = fresh[-1]["id"]

    # -- inside --------------------------------------------------------------------------------------
    def _environment(self) -> dict[str, str]:
        """Nothing of the tests' Python, and nothing that names a provider or a bucket."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(self.folder), **self.environment()}

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                status = self._process.returncode
                raise RuntimeError(
                    f"peer {self.name} ended with {status} while it started:\n{self._end_of_log()}"
                )
            try:
                self.http.get(self.health).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.05)
        self.kill9()
        raise RuntimeError(
            f"peer {self.name} did not answer GET {self.health} within {_START_SECONDS:.0f} s:\n"
            f"{self._end_of_log()}"
        )

    def _end_of_log(self) -> str:
        return "\n".join(self.log.splitlines()[-40:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Ogx(PeerServer):
    """OGX with its files and batches and its message batches, in front of one chat server.

    :param upstream: address of the chat server, without ``/v1``.
    """

    name = "ogx"
    health = "/v1/health"
    #: What OGX calls the one model: its provider's name before the model's own.
    model = "chat/m-1"
    #: The same model behind the provider that can translate Anthropic's messages.
    translated_model = "translated/m-1"

    def __init__(self, folder: Path, upstream: str) -> None:
        super().__init__(folder)
        self._upstream = upstream

    def command(self) -> list[str]:
        (self.folder / "config.yaml").write_text(json.dumps(self._settings()))  # JSON is YAML
        return ["run", "config.yaml", "--insecure", "--port", str(self.port)]

    def _settings(self) -> dict[str, Any]:
        database = {"type": "sql_sqlite", "db_path": str(self.folder / "ogx.db")}
        keys = {"type": "kv_sqlite", "db_path": str(self.folder / "keys.db")}
        stores = {
            name: {"table_name": name, "backend": "database"}
            for name in ("inference", "conversations", "prompts", "connectors")
        }
        return {
            "version": 2,
            "distro_name": "peer",
            "apis": ["batches", "files", "inference", "messages"],
            "providers": {
                "inference": [
                    {
                        "provider_id": "chat",
                        "provider_type": "remote::passthrough",
                        "config": {"base_url": self._upstream, "api_key": "none"},
                    },
                    {
                        "provider_id": "translated",
                        "provider_type": "remote::openai",
                        "config": {"base_url": f"{self._upstream}/v1", "api_key": "none"},
                    },
                ],
                "files": [
                    {
                        "provider_id": "local",
                        "provider_type": "inline::localfs",
                        "config": {
                            "storage_dir": str(self.folder / "files"),
                            "metadata_store": {"table_name": "files_metadata", "backend": "database"},
                        },
                    }
                ],
                "batches": [
                    {
                        "provider_id": "reference",
                        "provider_type": "inline::reference",
                        "config": {
                            "sqlstore": {"table_name": "batches", "backend": "database"},
                            "max_concurrent_batches": 3,
                        },
                    }
                ],
                "messages": [
                    {
                        "provider_id": "builtin",
                        "provider_type": "inline::builtin",
                        "config": {
                            "kvstore": {"namespace": "message_batches", "backend": "keys"},
                            "max_concurrent_batches": 3,
                        },
                    }
                ],
            },
            "storage": {
                "backends": {"database": database, "keys": keys},
                "stores": {"metadata": {"namespace": "registry", "backend": "keys"}, **stores},
            },
            "registered_resources": {
                "models": [
                    {
                        "model_id": "m-1",
                        "provider_id": provider,
                        "provider_model_id": "m-1",
                        "model_type": "llm",
                        "metadata": {},
                    }
                    for provider in ("chat", "translated")
                ]
            },
            "server": {"host": "127.0.0.1", "port": self.port},
        }


class AIBrix(PeerServer):
    """AIBrix's metadata service with ``--dry-run``: files and batches, each request answered by its own body.

    Needs neither Kubernetes nor Redis so; its state lies in two folders below its home.
    """

    name = "aibrix"
    health = "/healthz"
    model = "m-1"

    def command(self) -> list[str]:
        return ["--dry-run", "--host", "127.0.0.1", "--port", str(self.port)]


class LLMock(PeerServer):
    """LLMock: files and batches in memory, faults on demand, and a verdict on the client."""

    name = "llmock"
    health = "/health"
    model = "gpt-4o"

    def command(self) -> list[str]:
        return ["serve", "--host", "127.0.0.1", "--port", str(self.port)]

    def fault(self, *behaviors: dict[str, Any]) -> None:
        """Queue behaviours for the calls to come, in LLMock's own words."""
        self.http.post("/_llmock/scenario", json={"behaviors": list(behaviors)}).raise_for_status()

    def waiting(self) -> list[dict[str, Any]]:
        """Return the behaviours that no call has met yet."""
        found: list[dict[str, Any]] = self.http.get("/_llmock/scenario").json()["pending"]
        return found

    def calls(self) -> list[dict[str, Any]]:
        """Return every call as LLMock's journal has it."""
        found: list[dict[str, Any]] = self.http.get("/_llmock/requests").json()["requests"]
        return found

    def verdict(self) -> dict[str, Any]:
        """Return LLMock's verdict on the client."""
        found: dict[str, Any] = self.http.get("/_llmock/verdict").raise_for_status().json()
        return found

    def forget(self) -> None:
        """Forget calls and queued behaviours; files and batches stay."""
        self.http.post("/_llmock/reset").raise_for_status()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
