"""Processes that are suspended at a point of the engine, and a ledger in which others act in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from tests.job_bench import Bench

_PATIENCE = 60.0


class Died(BaseException):
    """Ends a suspended process at a later point: not an error that anybody would catch."""


class Suspended:
    """A process that runs ``action`` until it meets ``point``, and stands still there until it is woken.

    :param dies_at: the point at which it ends, after it was woken; None to go on to the end.
    """

    def __init__(
        self, bench: Bench, point: str, action: Callable[[Bench], object], *, dies_at: str | None = None
    ) -> None:
        self._point, self._dies_at = point, dies_at
        self._reached, self._go = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._bench = replace(bench, fault=self._fault)
        self._action = action
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._reached.wait(_PATIENCE), f"the process never came to {self._point}: {self.error}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wake()

    def wake(self) -> None:
        """Let it go on, and wait until it has ended."""
        self._go.set()
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()

    def _fault(self, name: str) -> None:
        if name == self._point and not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(_PATIENCE)
        if name == self._dies_at:
            raise Died

    def _run(self) -> None:
        try:
            self._action(self._bench)
        except BaseException as error:
            self.error = error


class Interrupted:
    """A ledger whose caller is interrupted once, right after a certain call, while ``act`` happens.

    :param after: says of (method, arguments) whether this is the call.
    """

    def __init__(
        self, ledger: Any, *, after: Callable[[str, dict[str, Any]], bool], act: Callable[[], object]
    ) -> None:
        self._ledger, self._after, self._act = ledger, after, act
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            if not self.happened and self._after(name, kwargs):
                self.happened = True
                in_another_process(self._act)
            return result

        return call


def in_another_process(act: Callable[[], object]) -> None:
    """Do something with an event loop of its own, from within a running one."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(_PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def looks_for(*states: str) -> Callable[[str, dict[str, Any]], bool]:
    """Say that a call asks the ledger for the batches in exactly these states."""
    return lambda name, kwargs: (
        name == "batches" and {str(s) for s in kwargs.get("states") or ()} == {*states}
    )
