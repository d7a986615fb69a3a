"""Lists of batches over any cursor: when "not there" may be said, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_batch_llm.backends.base import Call
from airflow_batch_llm.backends.listing import BatchList, Page
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
from airflow_batch_llm.exceptions import InDoubt, NotFound, ProviderError, Refused

CALL = Call("GET", "https://host", "/batches")
NOW = 1_780_000_000.0


def batch(name: str, created_at: float | None = NOW) -> RemoteBatch:
    marks = {META_TOKEN: f"t-{name}", META_ORIGIN: "o"}
    return RemoteBatch(name, RemoteStatus.RUNNING, "running", metadata=marks, created_at=created_at)


class Pages:
    """Serves pages by their cursor: "" is the first."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    async def read(self, cursor: str | None) -> Page:
        self.asked.append(cursor or "")
        return self.pages[cursor or ""]

    def find(self, token: str, created_after: float | None = None) -> list[str]:
        found = BatchList(CALL, self.read).find(token, created_after=created_after)
        return [one.id for one in asyncio.run(found)]


def page(names: str, cursor: str | None, *, total: int | None = None, more: bool | None = None) -> Page:
    return Page([batch(name) for name in names], cursor, more, total)


def test_a_cursor_of_any_kind_is_followed_to_the_last_page() -> None:
    pages = Pages({"": page("ab", "x9=="), "x9==": page("cd", "3"), "3": page("e", None)})
    assert pages.find("t-d") == ["d"]
    assert pages.find("t-none") == []
    assert pages.asked == ["", "x9==", "3"] * 2


def test_a_page_without_batches_may_have_one_after_it() -> None:
    pages = Pages({"": page("", "1"), "1": page("a", None)})
    assert pages.find("t-a") == ["a"]


@pytest.mark.parametrize(
    "pages",
    [
        {"": page("a", "1"), "1": page("", "1")},  # the cursor stands still
        {"": page("ab", "b", more=True), "b": page("ab", "b", more=True)},  # it is not heeded
        {"": page("ab", "1", total=3), "1": page("ab", "2", total=3)},  # a third is never shown
        {"": page("ab", None, more=True)},  # more are promised, and no cursor leads there
        {
            "": page("ab", "1", total=4),
            "1": page("d", "2", total=3),
            "2": page("", None, total=3),
        },  # one slipped
    ],
)
def test_a_list_that_has_no_end_proves_nothing(pages: dict[str, Page]) -> None:
    with pytest.raises(InDoubt):
        Pages(pages).find("t-none")


@pytest.mark.parametrize("error", [Refused("a token that has run out"), NotFound("a batch that is gone")])
def test_a_cursor_that_is_refused_later_on_leaves_the_list_without_an_end(error: ProviderError) -> None:
    class RunsOut(Pages):
        async def read(self, cursor: str | None) -> Page:
            if cursor is not None:
                raise error
            return await super().read(cursor)

    pages = RunsOut({"": page("ab", "x")})
    assert pages.find("t-b") == ["b"]
    with pytest.raises(InDoubt):
        pages.find("t-none")


def test_a_list_that_is_refused_from_the_start_is_refused() -> None:
    class Denied(Pages):
        async def read(self, cursor: str | None) -> Page:
            raise Refused("no such endpoint")

    with pytest.raises(Refused):
        Denied({}).find("t-none")


def test_what_was_found_counts_although_the_list_has_no_end() -> None:
    assert Pages({"": page("ab", "1"), "1": page("", "1")}).find("t-a") == ["a"]


@pytest.mark.parametrize("total", [None, 2])
def test_a_server_that_shows_all_it_has_again_and_again_has_shown_all(total: int | None) -> None:
    pages = Pages({"": page("ab", "1", total=total), "1": page("ab", "2", total=total)})
    assert pages.find("t-none") == []


def test_batches_that_came_meanwhile_push_others_to_the_next_page_unharmed() -> None:
    pages = Pages(
        {
            "": page("ab", "1", total=4),
            "1": page("bc", "2", total=5),
            "2": page("d", "3", total=5),
            "3": page("", None, total=5),
        }
    )
    assert pages.find("t-d") == ["d"]
    assert pages.find("t-none") == []


@pytest.mark.parametrize(
    ("times", "ends"),
    [
        ([NOW, NOW - 5_000], True),
        ([NOW - 5_000, NOW], False),  # in another order nothing is concluded
        ([NOW, None], False),
        ([NOW, NOW - 500], False),  # clocks differ by up to ten minutes
    ],
)
def test_the_search_ends_where_a_list_in_order_is_older(times: Sequence[float | None], ends: bool) -> None:
    first = Page([batch(str(place), moment) for place, moment in enumerate(times)], "1")
    pages = Pages({"": first, "1": page("z", None)})
    assert pages.find("t-z", NOW) == ([] if ends else ["z"])


@pytest.mark.parametrize("times", [[1.0], [1.0, 1.0]])
def test_an_old_page_that_shows_no_order_does_not_end_a_list_that_may_run_oldest_first(
    times: list[float],
) -> None:
    old = Page([batch(f"old-{n}", NOW - 86_400.0 * moment) for n, moment in enumerate(times)], "1")
    pages = Pages({"": old, "1": page("a", None)})
    assert pages.find("t-a", created_after=NOW) == ["a"]


def test_an_upload_tells_only_what_shows_no_token() -> None:
    bare = [replace(batch(name), metadata={}, input_file_id=f"file-{name}") for name in "ab"]
    marked = replace(batch("c"), input_file_id="file-a")
    pages = Pages({"": Page([*bare, marked], None)})
    found = BatchList(CALL, pages.read).find("t-lost", upload="file-a")
    assert [one.id for one in asyncio.run(found)] == ["a"]
    assert pages.find("t-lost") == []
