"""Files through Airflow's object storage: local ones, and a bucket that counts what is fetched from it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource


def test_a_file_is_read_through_object_storage(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "1", "body": "a"}\n')
    prompt = RowPrompt("{{ row.body }}").resolve({})

    drafts = list(FileSource(f"file://{path}", key="id").resolve({}).drafts(prompt))

    assert [draft.custom_id for draft in drafts] == ["1"]
    with pytest.raises(SourceError, match="there is no file"):
        list(FileSource(f"file://{path}.nope", "jsonl", key="id").resolve({}).drafts(prompt))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_patterns_are_looked_up_through_object_storage(tmp_path: Path, scheme: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": "{name}", "body": "x"}}\n')
    prompt = RowPrompt("{{ row.body }}").resolve({})
    reader = FileSource(f"{scheme}{tmp_path}/*.jsonl", key="id").resolve({})

    drafts = list(reader.drafts(prompt))

    assert [draft.custom_id for draft in drafts] == ["a", "b"]
    assert reader.place_name(drafts[1].line) == f"{scheme}{tmp_path}/b.jsonl, line 1"


class Bucket(AbstractFileSystem):
    """An object store: keys in a bucket, read by ranges, which are counted."""

    protocol = "s3"
    cachable = False

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.fetched = 0

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        found: dict[str, dict[str, Any]] = {}
        for key, data in self.objects.items():
            if key == path:
                found[key] = {"name": key, "size": len(data), "type": "file"}
            elif key.startswith(f"{path}/"):
                name, below, _ = key[len(path) + 1 :].partition("/")
                kind = {"size": 0, "type": "directory"} if below else {"size": len(data), "type": "file"}
                found[f"{path}/{name}"] = {"name": f"{path}/{name}", **kind}
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else list(found)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Range(self, path, mode, **options)


class Range(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.objects[self.path][start:end]
        self.fs.fetched += len(data)
        return data


@pytest.fixture
def bucket() -> Iterator[Callable[[dict[str, bytes]], Bucket]]:
    """Return a function that puts objects behind addresses of S3, of connection ``lake``."""
    from airflow.sdk.io import store

    before = dict(store._STORE_CACHE)

    def put(objects: dict[str, bytes]) -> Bucket:
        files = Bucket(objects)
        store.attach("s3", "lake", fs=files)
        return files

    yield put
    store._STORE_CACHE.clear()
    store._STORE_CACHE.update(before)


@pytest.mark.parametrize("address", ["s3://lake@data/{}", "s3://data/{}"])
def test_a_bucket_is_read_by_pattern_with_its_connection(
    bucket: Callable[[dict[str, bytes]], Bucket], address: str
) -> None:
    line = '{{"id": "{}", "body": "x"}}\n'
    bucket(
        {
            "data/day=1/part-1.jsonl": line.format("1").encode(),
            "data/day=2/part-0.jsonl": line.format("2").encode(),
            "data/day=2/_SUCCESS": b"",
            "data/other/readme.txt": b"",
        }
    )
    conn_id = None if "@" in address else "lake"
    prompt = RowPrompt("{{ row.body }}").resolve({})

    def ids(path: str) -> list[Any]:
        source = FileSource(address.format(path), key="id", conn_id=conn_id)
        return [draft.custom_id for draft in source.resolve({}).drafts(prompt)]

    assert ids("day=*/*") == ids("**/*.jsonl") == ["1", "2"]
    assert ids("day=2/part-0.jsonl") == ["2"]
    assert ids("day=3/*.jsonl") == []
    with pytest.raises(SourceError, match="there is no file s3://.*data/day=3/part-0.jsonl"):
        ids("day=3/part-0.jsonl")


def test_of_a_wide_parquet_file_in_a_bucket_only_what_is_needed_is_fetched(
    bucket: Callable[[dict[str, bytes]], Bucket],
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = [f"{n:06d} " * 100 for n in range(20_000)]
    table = pa.table({"id": range(20_000), "body": [word[:50] for word in words], "other": words})
    data = io.BytesIO()
    parquet.write_table(table, data, compression="none", use_dictionary=False)
    files = bucket({"data/wide.parquet": data.getvalue()})

    source = FileSource("s3://data/wide.parquet", key="id", conn_id="lake").resolve({})
    count = sum(1 for _ in source.drafts(RowPrompt("{{ row.body }}").resolve({})))

    assert count == 20_000
    assert files.fetched < len(data.getvalue()) // 5
