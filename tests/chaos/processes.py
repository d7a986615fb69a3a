"""Task processes: forked from a warm one, watched through a pipe, killed and suspended for real."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

#: Seconds after which a process counts as hanging.
_PATIENCE = 60.0
_PR_SET_PDEATHSIG = 1


class Hung(AssertionError):
    """A process neither ended nor came to its point."""


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Get a signal when the process that started this one dies (Linux): nothing is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


class Teller:
    """The process's end of the pipe. Messages are short, so that each is written in one piece."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def tell(self, kind: str, **facts: Any) -> None:
        """Write a message; the parent has it even if this process dies at once."""
        os.write(self._handle, json.dumps({"kind": kind, **facts}).encode() + b"\n")

    def die(self, point: str) -> None:
        """End by SIGKILL, here and now."""
        self.tell("killed", point=point)
        os.kill(os.getpid(), signal.SIGKILL)

    def stand_still(self, point: str, why: str) -> None:
        """Stop by SIGSTOP; returns when the parent lets it go on."""
        self.tell("standing", point=point, why=why)
        os.kill(os.getpid(), signal.SIGSTOP)


class Process:
    """A forked process.

    :param action: what it does, with a :class:`Teller`; its messages are all that comes back.
    :param hear: called with each message, in order.
    """

    def __init__(self, action: Callable[[Teller], None], hear: Callable[[dict[str, Any]], None]) -> None:
        self._hear = hear
        self._buffer = b""
        self.status: int | None = None
        self.standing: str | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self._handle, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_the_child(action, write)
        os.close(write)

    @staticmethod
    def _be_the_child(action: Callable[[Teller], None], write: int) -> None:
        status = 1
        try:
            end_with_parent()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            action(Teller(write))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    @property
    def ended(self) -> bool:
        return self.status is not None

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        assert self.status is not None
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    def wait(self) -> None:
        """Return when it has ended, or stands still. :raises Hung: it does neither."""
        until = time.monotonic() + _PATIENCE
        while not self.ended and self.standing is None:
            ready, _, _ = select.select([self._handle], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Hung(f"process {self.pid} hangs")
            self._read()

    def go_on(self) -> None:
        """Let it go on from where it stands."""
        self.standing = None
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, wherever it is."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            self.standing = None
            while not self.ended:
                self._read()

    def _read(self) -> None:
        data = os.read(self._handle, 1 << 16)
        if not data:
            os.close(self._handle)
            self.status = os.waitpid(self.pid, 0)[1]
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["kind"] == "standing":
                self._wait_until_it_stands()
                self.standing = message["point"]
            self._hear(message)

    def _wait_until_it_stands(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"process {self.pid} ended where it should stand still"
