from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, RowsSource
from airflow_batch_llm.sources.base import RowOptions

PROMPT = RowPrompt("{{ row.body }}").resolve({})


def _lines(*ids: str) -> bytes:
    return b"".join(b'{"id":"%s","body":"text of %s"}\n' % (i.encode(), i.encode()) for i in ids)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _reader(pattern: Path | str, **arguments: Any) -> Any:
    return FileSource(str(pattern), key="id", **arguments).resolve({})


def _ids(pattern: Path | str, **arguments: Any) -> list[Any]:
    return [draft.custom_id for draft in _reader(pattern, **arguments).drafts(PROMPT)]


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    _write(tmp_path, {"b.jsonl": _lines("3"), "a.jsonl": _lines("1", "2"), "c.txt": b"no rows"})

    assert _ids(tmp_path / "*.jsonl") == ["1", "2", "3"]
    assert _ids(tmp_path / "[bc].jsonl") == ["3"]
    assert _ids(tmp_path / "?.jsonl") == ["1", "2", "3"]


def test_two_stars_reach_into_all_folders_and_one_star_does_not(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1"), "x/b.jsonl": _lines("2"), "x/y/c.jsonl": _lines("3")})

    assert _ids(tmp_path / "**" / "*.jsonl") == ["1", "2", "3"]
    assert _ids(tmp_path / "*" / "*.jsonl") == ["2"]


def test_formats_may_differ_from_file_to_file(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    packed = gzip.compress(_lines("4"))
    _write(
        tmp_path, {"a.csv": b"id,body\n1,x\n", "b.jsonl": _lines("2"), "d.ndjson.gz": packed, "e.csv": b""}
    )
    parquet.write_table(pa.table({"id": ["3"], "body": ["x"]}), tmp_path / "c.parquet")

    assert _ids(tmp_path / "*") == ["1", "2", "3", "4"]


def test_no_file_means_no_rows_where_a_plain_path_is_an_error(tmp_path: Path) -> None:
    assert _ids(tmp_path / "2026-01-01" / "*.jsonl") == []
    with pytest.raises(SourceError, match="there is no file"):
        _ids(tmp_path / "part-0.jsonl")


def test_marks_of_writers_and_their_unfinished_files_are_left_out(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "part-0.jsonl": _lines("1"),
            "_SUCCESS": b"",
            ".part-0.jsonl.crc": b"\0",
            "_temporary/0/part-1.jsonl": _lines("2"),
            "_kept/part-2.jsonl": _lines("3"),
        },
    )

    assert _ids(tmp_path / "**") == ["1"]
    assert _ids(tmp_path / "_kept" / "*") == ["3"]
    assert _ids(tmp_path / "_k*" / "*") == ["3"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1"), "folder.jsonl/b.txt": b""})

    assert _ids(tmp_path / "*.jsonl") == ["1"]


def test_a_file_whose_name_looks_like_a_pattern_is_read_as_it_is(tmp_path: Path) -> None:
    _write(tmp_path, {"tickets [1].jsonl": _lines("1"), "tickets 1.jsonl": _lines("2")})

    assert _ids(tmp_path / "tickets [1].jsonl") == ["1"]


def test_a_file_of_no_known_format_is_named_before_a_row_is_read(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1"), "b.txt": _lines("2")})

    reading = _reader(tmp_path / "*").drafts(PROMPT)
    with pytest.raises(SourceError, match=r"cannot tell the format of .*b\.txt"):
        next(reading)
    assert _ids(tmp_path / "*", format="jsonl") == ["1", "2"]


def test_faults_are_told_with_file_and_line(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1", "2"), "b.jsonl": b'{"id":"3","body":"x"}\n{"id":"4"}\n'})
    with pytest.raises(Exception, match=r"row '4' \(.*b\.jsonl, line 2\): .* column 'body'"):
        _ids(tmp_path / "*.jsonl")

    _write(tmp_path, {"b.jsonl": b'{"id":"3","body":"x"}\n{"id":\n'})
    with pytest.raises(SourceError, match=r"b\.jsonl: line 2 is not JSON"):
        _ids(tmp_path / "*.jsonl")

    _write(tmp_path, {"b.jsonl": b'{"id":1.5,"body":"x"}\n'})
    with pytest.raises(SourceError, match=r"b\.jsonl, line 1: key column 'id' is a float"):
        _ids(tmp_path / "*.jsonl")


def test_places_count_on_and_name_file_and_line(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": b"\n" + _lines("1", "2"), "b.jsonl": b"", "c.csv": b"id,body\n3,x\n"})
    reader = _reader(tmp_path / "*")

    places = [draft.line for draft in reader.drafts(PROMPT)]

    assert places == sorted(set(places))
    told = [reader.place_name(place).removeprefix(f"{tmp_path}/") for place in places]
    assert told == ["a.jsonl, line 2", "a.jsonl, line 3", "c.csv, line 2"]
    assert reader.id_origin == f"ids are the key column 'id' of {tmp_path}/*"


def test_a_later_file_without_the_key_column_is_named(tmp_path: Path) -> None:
    _write(tmp_path, {"a.csv": b"id,body\n1,x\n", "b.csv": b"ident,body\n2,x\n"})

    with pytest.raises(SourceError, match=r"b\.csv has no key column 'id'; it has: ident, body"):
        _ids(tmp_path / "*.csv")


def test_a_later_file_without_a_carried_column_is_named(tmp_path: Path) -> None:
    _write(tmp_path, {"a.csv": b"id,body,lang\n1,x,de\n", "b.csv": b"id,body\n2,x\n"})

    with pytest.raises(SourceError, match=r"b\.csv, line 2 has no column 'lang' to carry; it has: id, body"):
        list(_reader(tmp_path / "*.csv").drafts(PROMPT, RowOptions(carry=("lang",))))


def test_a_pattern_is_looked_up_anew_at_every_reading(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1")})
    reader = _reader(tmp_path / "*.jsonl")
    first = [draft.custom_id for draft in reader.drafts(PROMPT)]
    _write(tmp_path, {"b.jsonl": _lines("2")})

    assert (first, [draft.custom_id for draft in reader.drafts(PROMPT)]) == (["1"], ["1", "2"])


def test_an_upstream_task_may_hand_over_a_pattern(tmp_path: Path) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1"), "b.jsonl": _lines("2")})

    for reference in (f"{tmp_path}/*.jsonl", {"path": f"{tmp_path}/*", "format": "jsonl"}):
        reader = RowsSource(reference, key="id").resolve({})
        assert [draft.custom_id for draft in reader.drafts(PROMPT)] == ["1", "2"]


def test_a_relative_pattern_begins_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, {"a.jsonl": _lines("1")})
    monkeypatch.chdir(tmp_path)

    assert _ids("*.jsonl") == ["1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    _write(tmp_path, {"closed/a.jsonl": _lines("1")})
    (tmp_path / "closed").chmod(0)
    try:
        with pytest.raises(SourceError, match="may not be read"):
            _ids(tmp_path / "closed" / "*.jsonl")
    finally:
        (tmp_path / "closed").chmod(0o700)
