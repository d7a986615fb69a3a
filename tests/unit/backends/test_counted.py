"""Results whose size nobody names: when they are whole, and when rows are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_batch_llm.backends.counted import count_rows, fetch_counted, holds_rows_only, rows_of
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile
from airflow_batch_llm.exceptions import TransferError

ROW = b'{"custom_id":"w"}\n'


def fetched(folder: Path, rows: int, *reads: bytes) -> tuple[bytes, list[float]]:
    """Return what stands in the file in the end, and what was waited for."""
    left, waits = list(reads), []
    local = folder / "raw.jsonl"

    async def fetch(target: Path) -> None:
        target.write_bytes(left.pop(0))

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    try:
        asyncio.run(fetch_counted(fetch, local, rows=rows, what="results of b", pause=pause))
    except TransferError:
        assert not local.exists()
        raise
    assert not left, "no more reads than needed"
    return local.read_bytes(), waits


def test_as_many_rows_as_are_counted_are_read_once(tmp_path: Path) -> None:
    assert fetched(tmp_path, 2, ROW * 2) == (ROW * 2, [])
    assert fetched(tmp_path, 0, b"") == (b"", [])


def test_results_that_are_still_written_are_read_again_a_little_later(tmp_path: Path) -> None:
    assert fetched(tmp_path, 3, ROW, ROW * 2, ROW * 3) == (ROW * 3, [0.5, 0.5])


def test_what_three_reads_say_is_believed(tmp_path: Path) -> None:
    assert fetched(tmp_path, 3, *[ROW * 2] * 3) == (ROW * 2, [0.5, 0.5])
    assert fetched(tmp_path, 3, ROW, *[ROW * 2] * 3)[0] == ROW * 2


def test_a_stream_that_breaks_off_twice_at_the_same_row_is_not_believed(tmp_path: Path) -> None:
    assert fetched(tmp_path, 2, ROW, ROW, ROW * 2)[0] == ROW * 2
    assert fetched(tmp_path, 4, ROW, ROW * 2, ROW, ROW * 2, ROW * 4)[0] == ROW * 4


def test_reads_that_each_end_elsewhere_are_none(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="2 of 9 rows"):
        fetched(tmp_path, 9, ROW, ROW * 3, ROW, ROW * 3, ROW * 2)


def test_what_breaks_off_in_the_middle_of_a_row_is_not_believed_however_often(tmp_path: Path) -> None:
    half = ROW + ROW[:-4]
    with pytest.raises(TransferError, match="1 of 2 rows"):
        fetched(tmp_path, 2, *[half] * 5)
    assert fetched(tmp_path, 2, half, half, ROW * 2)[0] == ROW * 2


def test_no_row_at_all_is_believed_when_it_is_said_three_times(tmp_path: Path) -> None:
    assert fetched(tmp_path, 2, b"", b"", b"") == (b"", [0.5, 0.5])
    assert fetched(tmp_path, 1, b"", ROW)[0] == ROW


def test_half_a_row_at_the_end_is_no_row(tmp_path: Path) -> None:
    assert fetched(tmp_path, 2, ROW + ROW[:-4], ROW * 2)[0] == ROW * 2
    assert fetched(tmp_path, 2, ROW + ROW.strip())[0] == ROW + ROW.strip(), "the last end may be missing"


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", 0),
        (b"\n \n", 0),
        (ROW, 1),
        (ROW[:5], 0),
        (b'{"a":"\xff"}', 1),
        (b'{"a":"\xff', 0),
        (b'{"a":NaN,"b":"\x01"}', 1),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1),
        (b"<html>\n{color: red}\n</html>\n", 0),
        (b'[]\nnull\n"x"\n3\n' + ROW, 1),
    ],
)
def test_rows_are_counted_without_half_ones(data: bytes, rows: int, tmp_path: Path) -> None:
    local = tmp_path / "raw"
    local.write_bytes(data)
    assert count_rows(local) == rows


def test_a_page_of_as_many_lines_is_not_the_results(tmp_path: Path) -> None:
    page = b"<html>\n<p>Soon.</p>\n</html>\n"
    assert fetched(tmp_path, 2, page, ROW * 2)[0] == ROW * 2
    with pytest.raises(TransferError, match="0 of 2 rows"):
        fetched(tmp_path, 2, *[page] * 5)


def test_a_strange_line_at_the_end_is_believed_when_it_is_read_three_times(tmp_path: Path) -> None:
    assert fetched(tmp_path, 2, *[ROW + b"null\n"] * 3)[0] == ROW + b"null\n"


def test_a_file_holds_rows_only_where_each_line_is_an_object(tmp_path: Path) -> None:
    local = tmp_path / "raw"
    for data, only in ((ROW * 2, True), (ROW + b"\n" + ROW.strip(), True), (ROW + b"[]", False)):
        local.write_bytes(data)
        assert holds_rows_only(local) is only


OUTPUT, ERRORS = ResultFile("output", "o"), ResultFile("error", "e")
COUNTS = {"total": 9, "completed": 5, "failed": 3}


@pytest.mark.parametrize(
    ("files", "counts", "file", "rows"),
    [
        ((OUTPUT, ERRORS), COUNTS, OUTPUT, 5),
        ((OUTPUT, ERRORS), COUNTS, ERRORS, 3),
        ((OUTPUT,), COUNTS, OUTPUT, 8),
        ((ERRORS,), {}, ERRORS, 0),
        ((OUTPUT,), {"total": 9}, OUTPUT, 0),
    ],
)
def test_a_file_holds_what_the_batch_counts_for_its_kind(
    files: tuple[ResultFile, ...], counts: dict[str, int], file: ResultFile, rows: int
) -> None:
    batch = RemoteBatch("b", RemoteStatus.DONE, "completed", files=files, counts=counts)
    assert rows_of(batch, file) == rows
