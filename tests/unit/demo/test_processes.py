"""Ending processes: whatever they fork, whatever they ignore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from example_dags.demo.processes import (
    Component,
    end_recorded_sessions,
    record_sessions,
    session_members,
    stop_all,
)

#: Forks a child that moves to a process group of its own; both ignore SIGTERM and say when they do.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    print("child", flush=True)
else:
    print("parent", flush=True)
while True:
    time.sleep(1)
"""

POLITE = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("parent", "child", sep="\\n", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(7)
"""


@pytest.fixture
def components() -> Iterator[list[Component]]:
    started: list[Component] = []
    yield started
    for component in started:
        component.kill()


def start(components: list[Component], tmp_path: Path, code: str) -> Component:
    component = Component("it", [sys.executable, "-c", code], dict(os.environ), tmp_path / "it.log").start()
    components.append(component)
    while not {"parent", "child"} <= set(component.log_tail().splitlines()):
        assert component.running, component.log_tail()
    return component


def test_a_component_that_ignores_sigterm_ends_with_its_children(
    components: list[Component], tmp_path: Path
) -> None:
    component = start(components, tmp_path, STUBBORN)
    assert len(component.members()) == 2
    assert len({os.getpgid(pid) for pid in component.members()}) == 2
    stop_all([component], grace=0.1)
    assert component.members() == []
    assert component.exit_code == -9


def test_children_end_even_when_their_parent_has_ended_before(
    components: list[Component], tmp_path: Path
) -> None:
    component = start(components, tmp_path, STUBBORN)
    os.kill(component.pid, 9)
    while component.running:
        pass
    assert len(component.members()) == 1
    stop_all([component], grace=0.1)
    assert component.members() == []


def test_a_component_may_end_by_itself_within_the_grace(components: list[Component], tmp_path: Path) -> None:
    component = start(components, tmp_path, POLITE)
    stop_all([component], grace=30.0)
    assert component.exit_code == 7


def test_what_a_killed_parent_left_running_is_ended_by_the_next_start(
    components: list[Component], tmp_path: Path
) -> None:
    component = start(components, tmp_path, STUBBORN)
    record = tmp_path / "sessions.json"
    record_sessions(record, [component])
    assert end_recorded_sessions(record) == 1
    assert session_members(component.pid) == []
    assert end_recorded_sessions(record) == 0


def test_a_recorded_pid_that_now_belongs_to_another_program_is_left_alone(tmp_path: Path) -> None:
    record = tmp_path / "sessions.json"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = psutil.Process(other.pid).create_time()
        record.write_text(json.dumps([{"pid": other.pid, "started": started - 60}]))
        assert end_recorded_sessions(record) == 0
        assert other.poll() is None
        other.communicate(b"\n")
