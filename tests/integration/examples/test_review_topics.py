from __future__ import annotations

import pytest

from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic, Warehouse

REVIEWS = [
    (1, "kettle", "The courier was late and the parcel was damaged.", "2026-03-01"),
    (2, "lamp", "Awful service, I am disappointed.", "2026-03-01"),
    (3, "chair", "I love it, great quality, thank you!", "2026-03-02"),
    (4, "desk", "The price is too high.", "2026-03-02"),
    (5, "vase", "Okay, nothing to say about it.", "2026-03-03"),
]


@pytest.fixture(autouse=True)
def reviews(warehouse: Warehouse) -> None:
    warehouse.execute(
        "CREATE TABLE reviews (id INTEGER PRIMARY KEY, product TEXT, body TEXT, written_on TEXT)"
    )
    for review in REVIEWS:
        warehouse.execute("INSERT INTO reviews VALUES (?, ?, ?, ?)", review)


def topics(warehouse: Warehouse) -> dict[int, tuple[str, str, str]]:
    rows = warehouse.execute("SELECT id, written_on, topic, sentiment FROM review_topics")
    return {row[0]: row[1:] for row in rows}


def test_a_backfill_fills_one_partition_for_each_day(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    states = [examples.run("review_topics_backfill", day).state for day in range(4)]
    assert states == ["success"] * 4  # the last day has no reviews
    found = topics(warehouse)
    assert {number: row[0] for number, row in found.items()} == {r[0]: r[3] for r in REVIEWS}
    assert found[1][1] == "delivery" and found[4][1] == "price"
    assert found[2][2] == "negative" and found[3][2] == "positive"
    assert traffic.sent == len(REVIEWS)


def test_a_day_that_is_run_again_pays_for_new_and_changed_reviews_only(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    examples.run("review_topics_backfill", 0)
    warehouse.execute("UPDATE reviews SET body = 'Now I love the price.' WHERE id = 2")
    warehouse.execute("INSERT INTO reviews VALUES (6, 'mug', 'Broken parcel.', '2026-03-01')")
    warehouse.execute("DELETE FROM reviews WHERE id = 1")
    traffic.forget()
    assert examples.run("review_topics_backfill", 0).state == "success"
    assert traffic.sent == 2
    assert set(topics(warehouse)) == {2, 6}
    assert topics(warehouse)[2][1] == "price"


def test_a_day_with_a_dead_review_keeps_what_it_had(
    examples: Examples, warehouse: Warehouse, server: object
) -> None:
    examples.run("review_topics_backfill", 0)
    before = topics(warehouse)
    warehouse.execute("INSERT INTO reviews VALUES (7, 'jar', 'A forbidden word.', '2026-03-01')")
    rows = [{"match": {"contains": "forbidden"}, "fault": "content_filter"}]
    server.set_scenario({"rows": rows})  # type: ignore[attr-defined]
    assert examples.run("review_topics_backfill", 0).state == "failed"
    assert topics(warehouse) == before


def test_a_day_whose_reviews_are_all_gone_is_emptied(examples: Examples, warehouse: Warehouse) -> None:
    examples.run("review_topics_backfill", 0)
    assert set(topics(warehouse)) == {1, 2}
    warehouse.execute("DELETE FROM reviews WHERE written_on = '2026-03-01'")
    assert examples.run("review_topics_backfill", 0).state == "success"
    assert topics(warehouse) == {}
