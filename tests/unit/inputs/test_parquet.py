from __future__ import annotations

import io
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource
from airflow_batch_llm.sources.base import RowOptions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PROMPT = RowPrompt("{{ row.body }}").resolve({})
WHOLE_ROW = RowPrompt("{{ row.body }}{{ row | length }}").resolve({})


def _write(tmp_path: Path, columns: dict[str, Any], name: str = "rows.parquet", **options: Any) -> Path:
    path = tmp_path / name
    pq.write_table(pa.table(columns), path, **options)
    return path


def _drafts(path: Path, prompt: Any = PROMPT, *, key: str = "id", **options: Any) -> list[Any]:
    return list(FileSource(str(path), key=key).resolve({}).drafts(prompt, RowOptions(**options)))


def test_rows_come_in_order_and_numbered_over_all_row_groups(tmp_path: Path) -> None:
    path = _write(
        tmp_path, {"id": range(1, 1001), "body": [f"b{n}" for n in range(1, 1001)]}, row_group_size=300
    )

    drafts = _drafts(path)

    assert [(d.line, d.custom_id) for d in drafts] == [(n, str(n)) for n in range(1, 1001)]
    assert drafts[-1].body["messages"][0]["content"] == "b1000"


def test_every_type_comes_as_python_has_it(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)
    values = {
        "seconds": (moment.replace(microsecond=0), pa.timestamp("ms")),
        "micros": (moment, pa.timestamp("us")),
        "zoned": (moment.replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
        "day": (date(2026, 1, 2), pa.date32()),
        "clock": (time(3, 4, 5, 6), pa.time64("us")),
        "money": (Decimal("12345678901234567890.10"), pa.decimal128(30, 2)),
        "raw": (b"\x00\xff", pa.binary()),
        "tags": (["a", None], pa.list_(pa.string())),
        "nested": (
            {"at": moment, "parts": [{"n": 1}]},
            pa.struct([("at", pa.timestamp("us")), ("parts", pa.list_(pa.struct([("n", pa.int64())])))]),
        ),
        "named": ({"a": {"x": 1}}, pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
        "word": ("x", pa.dictionary(pa.int32(), pa.string())),
        "half": (1.5, pa.float16()),
        "large": (2**64 - 1, pa.uint64()),
        "none": (None, pa.null()),
    }
    given = {name: pa.array([value], kind) for name, (value, kind) in values.items()}
    given["named"] = pa.array([[("a", [("x", 1)])]], values["named"][1])
    path = _write(tmp_path, {"id": ["1"], "body": ["a"], **given})

    (draft,) = _drafts(path, WHOLE_ROW)

    row = draft.row
    stored = {name: row[name] for name in values}
    assert stored == {name: value for name, (value, _) in values.items()}
    assert {name: type(value) for name, value in stored.items()} == {
        name: type(value) for name, (value, _) in values.items()
    }


def test_nanoseconds_are_cut_to_microseconds_wherever_they_stand(tmp_path: Path) -> None:
    nested = pa.struct([("at", pa.timestamp("ns")), ("all", pa.list_(pa.time64("ns")))])
    path = _write(
        tmp_path,
        {
            "id": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
            "body": ["a"],
            "took": pa.array([1_999], pa.duration("ns")),
            "nested": pa.array([{"at": 1_001, "all": [2_002]}], nested),
        },
    )

    (draft,) = _drafts(path, WHOLE_ROW)

    assert draft.custom_id == "2023-11-14T22:13:20.123456+00:00"
    assert type(draft.row["id"]) is datetime
    assert draft.row["took"] == timedelta(microseconds=1)
    assert draft.row["nested"] == {"at": datetime(1970, 1, 1, microsecond=1), "all": [time(microsecond=2)]}


def test_old_timestamps_of_spark_are_read(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        {"id": ["1"], "body": ["a"], "at": pa.array([datetime(1, 1, 1)], pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
    )

    assert _drafts(path, WHOLE_ROW)[0].row["at"] == datetime(1, 1, 1)


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_text_comes_as_it_is(tmp_path: Path, kind: str) -> None:
    text = "\u202eעברית\u202c 🙂 {{ x }} {% raw %} ' \" \0 \r\n\x1b" + "x" * 1_000_000
    if not hasattr(pa, kind):
        pytest.skip(f"this pyarrow has no {kind}")
    path = _write(tmp_path, {"id": ["1"], "body": pa.array([text], getattr(pa, kind)())})

    assert _drafts(path)[0].body["messages"][0]["content"] == text


def test_only_the_columns_that_are_named_are_read_where_that_can_be_known(tmp_path: Path) -> None:
    path = _write(tmp_path, {"id": ["1"], "body": ["a"], "lang": ["de"], "other": ["o"]})

    assert _drafts(path, carry=("lang",))[0].row == {"id": "1", "body": "a", "lang": "de"}
    assert _drafts(path, WHOLE_ROW)[0].row == {"id": "1", "body": "a", "lang": "de", "other": "o"}
    assert len(_drafts(path, redact=dict)[0].row) == 4


def test_a_prompt_that_names_an_unknown_column_is_told_all_there_are(tmp_path: Path) -> None:
    path = _write(tmp_path, {"id": ["1"], "text": ["a"], "other": ["o"]})

    with pytest.raises(Exception, match=r"row '1' \(row 1\).*column 'body'.*it has: id, other, text"):
        _drafts(path)


def test_a_struct_is_read_whole_and_a_dot_in_a_name_is_no_path(tmp_path: Path) -> None:
    struct = pa.array([{"a": 1, "b": 2}], pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    path = _write(tmp_path, {"id": ["1"], "body": ["x"], "doc": struct, "doc.a": ["dotted"]})
    prompt = RowPrompt('{{ row["doc.a"] }} {{ row.doc.b }}').resolve({})

    assert _drafts(path, prompt)[0].body["messages"][0]["content"] == "dotted 2"


@pytest.mark.parametrize("rows", [0, 1])
def test_an_unknown_key_is_told_even_without_rows(tmp_path: Path, rows: int) -> None:
    path = _write(tmp_path, {"ident": pa.array([1] * rows, pa.int64()), "body": pa.array(["a"] * rows)})

    with pytest.raises(SourceError, match=r"rows\.parquet has no key column 'id'; it has: ident, body"):
        _drafts(path)


def test_a_key_that_is_no_stable_text_is_told_with_its_row(tmp_path: Path) -> None:
    path = _write(tmp_path, {"id": [1.0], "body": ["a"]})

    with pytest.raises(SourceError, match=r"rows\.parquet, row 1: key column 'id' is a float"):
        _drafts(path)


def _image(columns: dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


TICKETS = {"id": [str(n) for n in range(5000)], "body": [str(uuid.UUID(int=n)) * 20 for n in range(5000)]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b'{"id": "1"}\n',
        lambda data: data[:-100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
        lambda data: b"PAR1",
    ],
)
def test_what_is_no_whole_parquet_file_is_refused_by_name(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(damage(_image(TICKETS)))

    with pytest.raises(SourceError, match=r"rows\.parquet is not a Parquet file, or not a whole one"):
        _drafts(path)


def test_a_part_that_is_broken_is_told_with_the_row_before_it(tmp_path: Path) -> None:
    data = bytearray(_image(TICKETS, row_group_size=2500, compression="zstd", use_dictionary=False))
    second = pq.read_metadata(io.BytesIO(data)).row_group(1).column(1)
    begin = second.data_page_offset
    data[begin : begin + second.total_compressed_size] = b"\xff" * second.total_compressed_size
    path = tmp_path / "rows.parquet"
    path.write_bytes(data)

    with pytest.raises(SourceError, match=r"rows\.parquet cannot be read after row \d+"):
        _drafts(path)


def test_a_value_that_python_cannot_hold_is_told_with_row_and_column(tmp_path: Path) -> None:
    far = pa.array([0] * 400 + [2**60], pa.timestamp("ms"))
    path = _write(tmp_path, {"id": range(401), "body": ["a"] * 401, "at": far})

    with pytest.raises(SourceError, match=r"rows\.parquet, row 401: the value of column 'at' is a timestamp"):
        _drafts(path, WHOLE_ROW)
    assert len(_drafts(path)) == 401, "a column that nobody reads does no harm"


def test_text_that_is_not_utf8_is_told_with_row_and_column(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"secret\xff"]).buffers())
    path = _write(tmp_path, {"id": ["1"], "body": bad})

    with pytest.raises(SourceError, match=r"row 1: the value of column 'body' is not UTF-8") as caught:
        _drafts(path)
    assert "secret" not in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["1"])] * 2, names=["id", "id"]), path)

    with pytest.raises(SourceError, match="has two columns 'id'"):
        _drafts(path)


def test_a_missing_parquet_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.parquet").mkdir()

    with pytest.raises(SourceError, match=r"there is no file .*nowhere\.parquet"):
        _drafts(tmp_path / "nowhere.parquet")
    with pytest.raises(SourceError, match=r"folder\.parquet is a folder, not a file"):
        _drafts(tmp_path / "folder.parquet")


def test_without_pyarrow_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path, {"id": ["1"], "body": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-batch-llm\[parquet\]'"):
        _drafts(path)


def test_long_texts_that_the_file_holds_once_do_not_fill_memory(tmp_path: Path) -> None:
    text = "x" * 100_000
    path = _write(tmp_path, {"id": range(2_000), "body": pa.array([text] * 2_000).dictionary_encode()})
    assert path.stat().st_size < 1_000_000

    before = pa.total_allocated_bytes()
    reading = FileSource(str(path), key="id").resolve({}).drafts(PROMPT)
    most = max(pa.total_allocated_bytes() - before for _ in reading)

    assert most < 60_000_000, "200 MB of text, in batches"


class Storage:
    """A file whose reads are counted, and fail from some place on."""

    def __init__(self, data: bytes, fails_after: int | None = None) -> None:
        self._file = io.BytesIO(data)
        self.bytes = 0
        self._fails_after = fails_after

    def read(self, size: int = -1) -> bytes:
        if self._fails_after is not None and self.bytes > self._fails_after:
            raise OSError("Connection reset by peer")
        found = self._file.read(size)
        self.bytes += len(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a file where paths are opened."""

    def put(data: bytes, **options: Any) -> Storage:
        made = Storage(data, **options)
        monkeypatch.setattr("pathlib.Path.open", lambda path, mode: made)
        return made

    return put


@pytest.mark.parametrize("fails_after", [-1, 0, 70_000])
def test_a_storage_that_breaks_off_is_not_the_files_fault(storage: Any, fails_after: int) -> None:
    storage(_image(TICKETS, compression="none", use_dictionary=False), fails_after=fails_after)

    with pytest.raises(OSError, match="Connection reset"):
        _drafts(Path("rows.parquet"))


def test_columns_that_nobody_names_are_not_fetched(storage: Any) -> None:
    wide = TICKETS | {"other": [str(uuid.UUID(int=n)) * 100 for n in range(5000)]}
    data = _image(wide, compression="none", use_dictionary=False)
    file = storage(data)

    assert len(_drafts(Path("rows.parquet"))) == 5000
    assert file.bytes < len(data) // 3
