"""A real Airflow on this machine: four components, one SQLite database, ended without a trace.

Used by the demo and by the end-to-end tests. ``airflow standalone`` would do for looking around, but
its parent can end and leave the scheduler and the api-server running, and a test that stops or kills
one triggerer needs each component in its own hands.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import httpx

from example_dags.demo.processes import Component, end_recorded_sessions, record_sessions, stop_all
from example_dags.demo.rest import AirflowClient

#: What makes an Airflow, in the order of starting: the api-server takes longest to be ready.
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")

#: Names under which ``/monitor/health`` reports the heartbeats.
HEARTBEATS = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}

SERVE_LOGS = ("scheduler", "triggerer")

ADMIN = "admin"
ADMIN_PASSWORD = "admin"


class StackError(RuntimeError):
    """Airflow did not start; the message holds the end of the log that says why."""


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outside_env() -> dict[str, str]:
    """Return this process's environment without its Airflow settings, which must not leak in."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}


class AirflowStack:
    """Start, steer and end an Airflow of its own.

    As a context manager it starts on entry and ends every process on exit. It also ends them when the
    interpreter exits or gets SIGTERM; what a ``kill -9`` of this process left running is ended by the
    next start in the same home.

    :param home: AIRFLOW_HOME; made if absent, must not be in use by another Airflow.
    :param dags_folder: where the DAG files are.
    :param env: more environment variables (``AIRFLOW_CONN_…``, ``AIRFLOW__SECTION__KEY``); they win.
    :param port: port of the api-server, a free one by default.
    :param pythonpath: folders put in front of the import path of every component; triggers must be
        importable from here or from the installed packages, never from the DAG folder.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        pythonpath: Sequence[Path] = (),
    ) -> None:
        self.home = home.resolve()
        self.dags_folder = dags_folder.resolve()
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = self._environment(env or {}, pythonpath)
        self.client = AirflowClient(self.url, ADMIN, ADMIN_PASSWORD)
        self.components: dict[str, Component] = {}
        self._sessions = self.home / "sessions.json"
        self._passwords = self.home / "passwords.json"
        self._sigterm_before: Any = None

    def _environment(self, extra: Mapping[str, str], pythonpath: Sequence[Path]) -> dict[str, str]:
        env = outside_env()
        paths = [str(path) for path in pythonpath]
        if env.get("PYTHONPATH"):
            paths.append(env["PYTHONPATH"])
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(paths)
        env |= {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            # Without a key Airflow keeps connections and trigger arguments unencrypted.
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            # One key for all components: each would make up its own and refuse the others' tokens.
            "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(32),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "5",
            # Airflow 3.3 may fail a task whose trigger fires within this interval of the defer.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # Unbuffered logs: the end of a log must be there when a start fails.
            "PYTHONUNBUFFERED": "1",
        }
        env |= extra
        return env

    # -- start and end ---------------------------------------------------------------------------------

    def __enter__(self) -> AirflowStack:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, timeout: float = 120.0) -> AirflowStack:
        """Create the database, start the components and wait until all of them are healthy.

        :param timeout: seconds for the whole.
        :raises StackError: a component ended, or was not healthy in time. Nothing is left running.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        end_recorded_sessions(self._sessions)
        self._passwords.write_text(json.dumps({ADMIN: ADMIN_PASSWORD}))
        self._stop_at_exit()
        give_up = time.monotonic() + timeout
        try:
            self._migrate(give_up)
            for kind in COMPONENTS:
                self.start_component(kind)
            self._wait_healthy(give_up)
        except BaseException:
            self.stop(grace=1.0)
            raise
        return self

    def stop(self, grace: float = 3.0) -> None:
        """End every process of every component. Safe to call twice and at any time.

        :param grace: seconds the components together get to end by themselves.
        """
        stop_all(self.components.values(), grace)
        self._sessions.unlink(missing_ok=True)
        self.client.close()
        atexit.unregister(self.stop)
        if self._sigterm_before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._sigterm_before)
            self._sigterm_before = None

    def _stop_at_exit(self) -> None:
        atexit.register(self.stop)
        # The default action of SIGTERM runs no exit handler. A handler of the caller's stays in charge.
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._sigterm_before = signal.signal(signal.SIGTERM, _exit_on_sigterm)

    def _migrate(self, give_up: float) -> None:
        migrate = self._start("db-migrate", ["db", "migrate"])
        self._wait(lambda: migrate.exit_code is not None, "the metadata database", give_up, watch=False)
        if migrate.exit_code != 0:
            raise StackError(f"airflow db migrate failed:\n{migrate.log_tail()}")
        del self.components["db-migrate"]

    def _wait_healthy(self, give_up: float) -> None:
        def healthy() -> bool:
            try:
                health = self.client.health()
            except httpx.HTTPError:
                return False
            return all(health.get(name) == "healthy" for name in HEARTBEATS.values())

        self._wait(healthy, "healthy components", give_up)

    def _wait(self, done: Callable[[], bool], what: str, give_up: float, *, watch: bool = True) -> None:
        while not done():
            ended = [c for c in self.components.values() if watch and not c.running]
            if ended:
                tails = "\n".join(f"--- {c.log}\n{c.log_tail()}" for c in ended)
                raise StackError(f"waiting for {what}: a component has ended\n{tails}")
            if time.monotonic() > give_up:
                tails = "\n".join(f"--- {c.log}\n{c.log_tail(10)}" for c in self.components.values())
                raise StackError(f"waited too long for {what}\n{tails}")
            time.sleep(0.2)

    # -- single components -----------------------------------------------------------------------------

    def start_component(
        self, kind: str, *, name: str | None = None, env: Mapping[str, str] | None = None
    ) -> Component:
        """Start one component; a second one of a kind gets a name of its own.

        :param kind: one of :data:`COMPONENTS`.
        :param name: key in :attr:`components` and name of the log, the kind by default.
        :param env: more environment variables for this component alone.
        :raises RuntimeError: one of that name still runs.
        """
        arguments = [kind]
        if kind in SERVE_LOGS:
            # They would serve task logs on fixed ports, which two stacks would quarrel about. The
            # api-server reads the same files.
            arguments.append("--skip-serve-logs")
        return self._start(name or kind, arguments, env)

    def _start(self, name: str, arguments: list[str], env: Mapping[str, str] | None = None) -> Component:
        current = self.components.get(name)
        if current is not None and current.running:
            raise RuntimeError(f"{name} already runs")
        argv = [sys.executable, "-m", "airflow", *arguments]
        log = self.home / "components" / f"{name}.log"
        component = Component(name, argv, self.env | dict(env or {}), log)
        self.components[name] = component.start()
        record_sessions(self._sessions, self.components.values())
        return component

    def stop_component(self, name: str, grace: float = 8.0) -> None:
        """End one component with SIGTERM, after ``grace`` seconds with SIGKILL."""
        stop_all([self.components[name]], grace)
        record_sessions(self._sessions, self.components.values())

    def kill_component(self, name: str) -> None:
        """End one component and all its processes with SIGKILL."""
        self.components[name].kill()
        record_sessions(self._sessions, self.components.values())

    def wait_healthy(self, timeout: float = 60.0) -> None:
        """Wait until the last scheduler, triggerer and dag-processor heartbeats are fresh.

        :param timeout: seconds.
        :raises StackError: they are not, or a component has ended.
        """
        self._wait_healthy(time.monotonic() + timeout)


def _exit_on_sigterm(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
