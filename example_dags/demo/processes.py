"""Processes that are surely ended: each in a session of its own, stopped by the members of that session.

Airflow's components fork: the scheduler forks executor workers, these fork task processes, and task
processes move to process groups of their own. What they all keep is the session of the component, so
"every process whose session id is this one" is the component and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil


def session_members(session_id: int) -> list[int]:
    """Return the pids of the live (not zombie) processes of a session."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session_id and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members


def kill_session(session_id: int, patience: float = 10.0) -> None:
    """SIGKILL every process of a session until none is left.

    :param patience: seconds to keep trying; a process may fork while we look.
    :raises TimeoutError: members are left after ``patience``.
    """
    give_up = time.monotonic() + patience
    while members := session_members(session_id):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > give_up:
            raise TimeoutError(f"processes {members} of session {session_id} do not end")
        time.sleep(0.05)


class Component:
    """One started program, its session and its log file.

    :param name: what people call it; also the name of the log file.
    :param argv: the command.
    :param env: the whole environment.
    :param log: file that standard output and error are appended to.
    """

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Pid of the started program, which is also its session id. :raises RuntimeError: not started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the started program itself still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the started program, None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> Component:
        """Start the program as leader of a new session."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def members(self) -> list[int]:
        """Return the pids of all its processes."""
        return session_members(self.pid)

    def signal_all(self, signum: int) -> None:
        """Send a signal to all its processes: ``SIGSTOP`` and ``SIGCONT`` make a hang and end it."""
        for pid in self.members():
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                continue

    def terminate(self) -> None:
        """Ask the started program to end (SIGTERM); returns at once."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End all its processes at once (SIGKILL), as a crash of the machine would."""
        if self._process is None:
            return
        kill_session(self._process.pid)
        self._process.wait()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def stop_all(components: Iterable[Component], grace: float = 8.0) -> None:
    """End all processes of all components: SIGTERM to each, ``grace`` seconds together, then SIGKILL."""
    started = [component for component in components if component.exit_code is not None or component.running]
    for component in started:
        component.terminate()
    give_up = time.monotonic() + grace
    while any(component.running for component in started) and time.monotonic() < give_up:
        time.sleep(0.1)
    for component in started:
        component.kill()


def record_sessions(path: Path, components: Iterable[Component]) -> None:
    """Write down who runs, so that a later start can end what a killed parent left behind."""
    rows = []
    for component in components:
        if component.running:
            try:
                rows.append({"pid": component.pid, "started": psutil.Process(component.pid).create_time()})
            except psutil.NoSuchProcess:
                continue
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(rows))
    os.replace(scratch, path)


def end_recorded_sessions(path: Path) -> int:
    """End the recorded programs that still run (same pid and same start time); return how many."""
    if not path.exists():
        return 0
    ended = 0
    for row in json.loads(path.read_text()):
        try:
            if psutil.Process(row["pid"]).create_time() != row["started"]:
                continue
        except psutil.NoSuchProcess:
            continue
        kill_session(row["pid"])
        ended += 1
    path.unlink()
    return ended
