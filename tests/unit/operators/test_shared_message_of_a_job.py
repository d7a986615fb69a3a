"""The message that is shown for a job: read from its letters, cleared of the requests of all its rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_batch_llm.operators import shared_message as module
from airflow_batch_llm.operators.shared_message import shared_message
from tests.unit.operators.conftest import Desk

CAUSE = "temperature must be <= 2"


def test_the_commonest_message_is_shown_with_its_number_of_rows(desk: Callable[..., Desk]) -> None:
    made = desk([("say 1", CAUSE), ("say 2", "another")], [("say 3", CAUSE)])
    assert shared_message(made.tools, made.job) == (CAUSE, 2)


@pytest.mark.parametrize("messages", [[], [""], ["", ""], [CAUSE], [CAUSE, "another"]])
def test_a_message_of_one_row_is_not_shown(desk: Callable[..., Desk], messages: list[str]) -> None:
    made = desk([("say", message) for message in messages])
    assert shared_message(made.tools, made.job) is None


def test_the_words_of_all_rows_are_hidden_whatever_batch_they_are_in(desk: Callable[..., Desk]) -> None:
    message = "Cannot work with Jane or Joan today"
    made = desk([("I am Jane", message), ("I am nobody", message)], [("I am Joan", message)])
    assert shared_message(made.tools, made.job) == ("Cannot work with … or … today", 3)


def test_a_prompt_in_a_parameter_is_hidden_and_a_number_is_not(desk: Callable[..., Desk]) -> None:
    message = "100000 tokens are too many for Jane"
    params = {"max_tokens": 100000, "instructions": "You are Jane"}
    made = desk([("say 1", message), ("say 2", message)], params=params)
    assert shared_message(made.tools, made.job) == ("100000 tokens … too many for …", 2)


def test_nothing_is_shown_where_a_request_cannot_be_read(desk: Callable[..., Desk]) -> None:
    made = desk([("say 1", CAUSE)], [("say 2", CAUSE)])
    made.tools.workspace.delete_tree(f"{made.tools.root}/{made.batches()[1].path}")
    assert shared_message(made.tools, made.job) is None


def test_nothing_is_shown_where_a_request_is_not_what_was_sent(desk: Callable[..., Desk]) -> None:
    made = desk([("say 1", CAUSE), ("say 2", CAUSE)])
    path = f"{made.tools.root}/{made.batches()[0].path}"
    with made.tools.workspace.open(path) as file:
        made.tools.workspace.put(path, file.read().replace(b"say 2", b"say 3"))
    assert shared_message(made.tools, made.job) is None


def test_nothing_is_shown_where_a_row_has_no_request(desk: Callable[..., Desk]) -> None:
    made = desk([("say 1", CAUSE), ("say 2", CAUSE)])
    path = f"{made.tools.root}/{made.batches()[0].path}"
    with made.tools.workspace.open(path) as file:
        first = file.read().splitlines(keepends=True)[0]
    made.tools.workspace.put(path, first)
    assert shared_message(made.tools, made.job) is None


def test_nothing_is_shown_where_more_rows_share_it_than_are_read(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk([(f"say {n}", CAUSE) for n in range(5)])
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    assert shared_message(made.tools, made.job) == (CAUSE, 5)
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    assert shared_message(made.tools, made.job) is None
