"""Tests that run at once: each spends most of its time waiting for Airflow, and none minds the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from tests.e2e.runs import Jobs

Story = Callable[[Jobs], None]


class Together:
    """Runs the stories of the collected tests, one thread each, and keeps how each of them ended.

    :param items: the tests of the session.
    :param jobs: what each story is given.
    """

    def __init__(self, items: Iterable[pytest.Item], jobs: Jobs) -> None:
        found = (getattr(getattr(item, "function", None), "story", None) for item in items)
        stories: list[Story] = [story for story in found if story is not None]
        self._ended: dict[Story, Future[None]] = {}
        if stories:
            # Not as a context manager: an interrupted session would wait there for every story.
            pool = ThreadPoolExecutor(len(stories))
            self._ended = {story: pool.submit(story, jobs) for story in stories}
            wait(self._ended.values())
            pool.shutdown()

    def result(self, story: Story) -> None:
        """Raise what the story raised, if anything."""
        self._ended[story].result()


def at_once(story: Story) -> Callable[[Together], None]:
    """Make a test of a function that takes :class:`Jobs`; it runs together with all others so made."""

    def test(together: Together) -> None:
        together.result(story)

    test.story = story  # type: ignore[attr-defined]
    test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
    return test
