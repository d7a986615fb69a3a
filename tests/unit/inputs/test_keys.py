from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.sources.keys import KeyColumns


@pytest.mark.parametrize(
    ("value", "custom_id"),
    [
        ("r-1", "r-1"),
        (" r-1 ", " r-1 "),
        ("", ""),
        (7, "7"),
        (-(2**80), str(-(2**80))),
        (True, "true"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5), "03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (UUID("6BA7B810-9DAD-11D1-80B4-00C04FD430C8"), "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1.50"), "1.50"),
        (None, None),
    ],
)
def test_one_key_column_becomes_its_text(value: Any, custom_id: str | None) -> None:
    found, _ = KeyColumns(["id"]).of({"id": value}, "row 1")

    assert found == custom_id


def test_an_id_does_not_depend_on_the_zone_of_the_session() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert KeyColumns(["t"]).of({"t": moment}, "") == KeyColumns(["t"]).of({"t": elsewhere}, "")


@pytest.mark.parametrize("value", [1.0, b"a", [1], {"a": 1}, Decimal("NaN"), timedelta(1)])
def test_a_value_without_a_stable_text_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(SourceError, match=rf"row 9: key column 'id' is a {type(value).__name__}"):
        KeyColumns(["id"]).of({"id": value}, "row 9")


@pytest.mark.parametrize("key", [[], [""], ["a", "a"]])
def test_a_key_without_proper_columns_is_refused(key: list[str]) -> None:
    with pytest.raises(SourceError):
        KeyColumns(key)


def test_a_null_in_a_key_of_several_columns_gives_no_id() -> None:
    assert KeyColumns(["a", "b"]).of({"a": "x", "b": None}, "")[0] is None


_part = st.text() | st.integers() | st.booleans() | st.dates() | st.uuids()


@given(st.tuples(_part, _part), st.tuples(_part, _part))
def test_two_keys_of_several_columns_never_share_an_id(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    key = KeyColumns(["a", "b"])
    one_id, one_key = key.of(dict(zip("ab", one, strict=True)), "")
    other_id, other_key = key.of(dict(zip("ab", other, strict=True)), "")

    def parts(found: dict[str, Any]) -> list[tuple[type, Any]]:
        return [(type(value), value) for value in found.values()]

    assert (one_id == other_id) == (parts(one_key) == parts(other_key))
