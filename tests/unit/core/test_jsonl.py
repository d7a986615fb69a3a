"""JSON lines, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.jsonl import dumps, dumps_canonical, iter_lines, loads, loads_lenient


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(
    st.lists(st.text(alphabet="ab\u2028\u0085\x0c\r \t", max_size=8), max_size=8),
    st.lists(st.integers(0, 99)),
)
def test_lines_are_the_same_however_the_bytes_are_cut(texts: list[str], places: list[int]) -> None:
    data = "\n".join(texts).encode()
    whole = list(iter_lines([data]))
    assert list(iter_lines(cut(data, places))) == whole
    assert list(iter_lines([bytes([b]) for b in data])) == whole


def test_only_a_line_feed_ends_a_line() -> None:
    data = '"a\u2028b\u0085c\x0cd"\n"e"'.encode()
    assert [line.decode() for _, line in iter_lines([data])] == ['"a\u2028b\u0085c\x0cd"', '"e"']


def test_marks_blanks_and_carriage_returns_are_dropped_and_numbers_stay() -> None:
    data = b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"b":2}\r\n   '
    assert list(iter_lines([data])) == [(1, b'{"a":1}'), (4, b'{"b":2}')]


def test_what_is_written_is_strict() -> None:
    assert dumps({"x": float("nan"), "y": float("inf")}) == b'{"x":null,"y":null}'
    with pytest.raises(ValueError, match="surrogate"):
        dumps({"x": "\ud83d"})
    with pytest.raises(ValueError):
        dumps({"x": object()})
    with pytest.raises(ValueError):
        loads(b'{"x": NaN}')
    assert loads_lenient(b'{"x": Infinity}') == {"x": float("inf")}


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=6))
def test_equal_values_have_equal_canonical_bytes(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    try:
        assert dumps_canonical(value) == dumps_canonical(backwards)
    except ValueError:
        with pytest.raises(ValueError):
            dumps_canonical(backwards)
