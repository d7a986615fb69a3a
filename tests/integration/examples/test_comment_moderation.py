from __future__ import annotations

import json

import pytest

from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic, Warehouse

COMMENTS = [
    (1, "What a lovely till.", "2026-03-01T00:10:00+00:00"),
    (2, "I will kill you and your family.", "2026-03-01T00:20:00+00:00"),
    (3, "Late: I hate you, I will kill you.", "2026-02-28T23:30:00+00:00"),
    (4, "Too old to be looked at: I will kill you.", "2026-02-28T20:00:00+00:00"),
]


@pytest.fixture(autouse=True)
def comments(warehouse: Warehouse) -> None:
    warehouse.execute(
        "CREATE TABLE comments (id INTEGER PRIMARY KEY, body TEXT, edited_at TEXT, hidden INTEGER DEFAULT 0)"
    )
    for row in COMMENTS:
        warehouse.execute("INSERT INTO comments (id, body, edited_at) VALUES (?, ?, ?)", row)


def test_flagged_comments_are_hidden_and_late_ones_are_seen(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    assert examples.run("comment_moderation", hours=1).state == "success"
    rows = warehouse.execute("SELECT id, flagged, category_scores FROM comment_flags ORDER BY id")
    assert [(number, bool(flagged)) for number, flagged, _ in rows] == [(1, False), (2, True), (3, True)]
    assert all(0 <= score <= 1 for *_, scores in rows for score in json.loads(scores).values())
    assert [row[0] for row in warehouse.execute("SELECT id FROM comments WHERE hidden")] == [2, 3]
    assert traffic.sent == 3


def test_an_edited_comment_is_checked_again_and_the_newer_text_stands(
    examples: Examples, warehouse: Warehouse
) -> None:
    examples.run("comment_moderation", hours=1)
    warehouse.execute(
        "UPDATE comments SET body = 'Sorry.', edited_at = '2026-03-02T00:05:00+00:00' WHERE id = 2"
    )
    assert examples.run("comment_moderation", 1, hours=1).state == "success"
    query = "SELECT flagged, edited_at FROM comment_flags WHERE id = 2"
    ((flagged, edited_at),) = warehouse.execute(query)
    assert not flagged and edited_at.startswith("2026-03-02T00:05:00")
