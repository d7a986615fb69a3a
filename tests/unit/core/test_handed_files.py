"""What is in a file that a person hands in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.core.handed_files import Contents, contents_of

OURS = {"a1", "a2", "a3"}


def line(wire_id: str) -> bytes:
    body = {"object": "chat.completion", "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    return json.dumps({"custom_id": wire_id, "response": {"status_code": 200, "body": body}}).encode()


def read(tmp_path: Path, data: bytes) -> Contents:
    path = tmp_path / "file"
    path.write_bytes(data)
    return contents_of(path, decode_row, OURS)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
def test_rows_are_found_whatever_is_around_them(
    start: bytes, end: bytes, last: bytes, tmp_path: Path
) -> None:
    data = start + end.join([line("a1"), line("a2"), line("other"), line("a1")]) + last
    found = read(tmp_path, data)
    assert found.found == {"a1", "a2"} and found.unreadable == []
    assert (found.lines, found.foreign, found.repeated) == (4, 1, 1)
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_lines_that_are_no_rows_are_named_by_their_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, b"\n".join([b"# saved", line("a1"), b"[]", b"{}", b"", line("a2")[:-9]]))
    assert found.found == {"a1"} and found.unreadable == [1, 3, 4, 6]
    assert found.unreadable_lines() == "lines 1, 3, 4, 6"


def test_a_row_of_ours_that_says_nothing_cannot_be_read_and_is_ours(tmp_path: Path) -> None:
    found = read(tmp_path, b'{"custom_id":"a1","answer":"in a form of its own"}\n' * 2)
    assert found.found == {"a1"} and found.unreadable == [1, 2]


def test_of_many_lines_the_first_are_named(tmp_path: Path) -> None:
    assert read(tmp_path, b"x\n" * 9).unreadable_lines() == "lines 1, 2, 3, 4, 5 and 4 more"
    assert read(tmp_path, b"x").unreadable_lines() == "line 1"


def test_another_encoding_is_no_row_at_all(tmp_path: Path) -> None:
    found = read(tmp_path, (line("a1") + b"\n" + line("a2")).decode().encode("utf-16"))
    assert found.found == set() and len(found.unreadable) == found.lines > 0
