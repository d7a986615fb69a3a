"""How many messages at the beginning of every body are the same: what a prompt cache can be told to keep."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS
from airflow_batch_llm.prompts import RowPrompt

SHOT = [{"user": "a", "assistant": "b"}]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "body": "one", "said": [{"role": "user", "content": "x"}]},
    {"id": 2, "body": "two", "said": [{"role": "user", "content": "y"}]},
]


@pytest.mark.parametrize(
    ("prompt", "shared"),
    [
        (RowPrompt("{{ row.body }}"), 0),
        (RowPrompt("{{ row.body }}", system="Be brief."), 1),
        (RowPrompt("{{ row.body }}", system="Be brief.", examples=SHOT), 3),
        (RowPrompt("{{ row.body }}", examples=SHOT * 2), 4),
        (RowPrompt("{{ row.body }}", system="For {{ row.id }}.", examples=SHOT), 0),
        (RowPrompt("{{ row.body }}", system="Be brief.", history="said"), 1),
        (RowPrompt(history="said", system="Be brief.", examples=SHOT), 3),
        (
            RowPrompt(
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "{{ row.id }}"},
                    {"role": "user", "content": "b"},
                ]
            ),
            2,
        ),
        (RowPrompt(messages=[{"role": "user", "content": "always the same"}]), 0),
        (RowPrompt(body={"messages": [{"role": "user", "content": "{{ row.body }}"}]}), 0),
    ],
)
def test_the_messages_that_every_row_begins_with_are_counted(prompt: RowPrompt, shared: int) -> None:
    compiled = prompt.resolve({}, CHAT)  # type: ignore[arg-type]
    assert compiled.shared_messages == shared
    first, second = (compiled.body(row)["messages"] for row in ROWS)
    assert first[:shared] == second[:shared] and len(first) > shared


def test_an_endpoint_without_messages_shares_none() -> None:
    assert RowPrompt("{{ row.body }}").resolve({}, EMBEDDINGS).shared_messages == 0  # type: ignore[arg-type]
