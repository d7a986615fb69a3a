"""Texts that break naive pipelines reach the prompt byte for byte, whatever the source."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile, RowsSource, SqlSource
from airflow_batch_llm.sources.base import RowReader
from airflow_batch_llm.sources.database import Database

PROMPT = RowPrompt("{{ row.body }}").resolve({})

TEXTS = {
    "template": "{{ row.body }} {{ 7 * 7 }} {% for x in range(9) %}{% raw %} {# no comment #} ${x} %(a)s %s",
    "airflow": "{{ ds }} {{ var.value.secret }} {{ conn.warehouse.password }}",
    "quotes": """ ' '' " "" ` \\ \\' \\" \\n \\u0041 ,;\t| """,
    "sql": "'; DROP TABLE tickets; -- /* ' OR 1=1 */ :id ? $1",
    "lines": "a\nb\r\nc\rd\x0be\x0cf\x1cg\x85h\u2028i\u2029j",
    "controls": "".join(chr(code) for code in range(1, 0x20)) + "\x7f\x80\x9f\u00ad\u200b\u200d\ufeff\ufffe",
    "directions": "\u202eקפה\u202c مرحبا \u2066x\u2069 \u200f",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 \U0001f9ff e\u0301 é ﬀ \U0010ffff",
    "html": "<script>alert('x')</script> &amp; &#0; ]]> <|im_end|> <|endoftext|> [INST]",
    "json": '{"custom_id": "other", "body": null}\n{"id": 1}',
    "spaces": "  \t leading and trailing \t  ",
    "long": "ä" * 500_000 + "end",
}


def _rows() -> list[dict[str, str]]:
    return [{"id": name, "body": text} for name, text in TEXTS.items()]


def _jsonl(tmp_path: Path) -> RowReader:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row, ensure_ascii=bool(n % 2)) for n, row in enumerate(_rows())]
    path.write_bytes("\n".join(lines).encode("utf-8"))
    return FileSource(str(path), key="id").resolve({})


def _csv(tmp_path: Path) -> RowReader:
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "body"], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(_rows())
    return FileSource(str(path), key="id").resolve({})


def _parquet(tmp_path: Path) -> RowReader:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(_rows()), path)
    return FileSource(str(path), key="id").resolve({})


def _upstream(tmp_path: Path) -> Any:
    rows = [{**row, "body": row["body"][:1000]} for row in _rows()]
    return RowsSource(rows, key="id").resolve({})


def _check(reader: Any, texts: dict[str, str]) -> None:
    drafts = list(reader.drafts(PROMPT))
    assert {draft.custom_id for draft in drafts} == set(texts)
    for draft in drafts:
        (message,) = draft.body["messages"]
        assert message["content"] == texts[draft.custom_id], draft.custom_id
        assert loads(dumps(draft.row)) == {"id": draft.custom_id, "body": texts[draft.custom_id]}


@pytest.mark.parametrize("make", [_jsonl, _csv, _parquet])
def test_texts_in_files_reach_the_prompt_as_they_are(tmp_path: Path, make: Any) -> None:
    _check(make(tmp_path), TEXTS)


def test_texts_of_an_upstream_task_reach_the_prompt_as_they_are(tmp_path: Path) -> None:
    _check(_upstream(tmp_path), {name: text[:1000] for name, text in TEXTS.items()})


def test_texts_in_a_database_reach_the_prompt_as_they_are(
    database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    mark = "%s" if Database(database).dialect == "postgresql" else "?"
    sql("CREATE TABLE tickets (id VARCHAR(20), body TEXT)")
    for name, text in TEXTS.items():
        sql(f"INSERT INTO tickets VALUES ({mark}, {mark})", name, text)

    _check(SqlSource(database, "SELECT id, body FROM tickets", key="id").resolve({}), TEXTS)


def test_texts_as_ids_and_column_names_are_kept_as_well(tmp_path: Path) -> None:
    ids = [text for text in TEXTS.values() if len(text) < 1000]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"{{ id }}": text, "body": "x", text: text}) for text in ids))

    drafts = list(FileSource(str(path), key="{{ id }}").resolve({}).drafts(PROMPT))

    assert [draft.custom_id for draft in drafts] == ids
    assert all(draft.row[draft.custom_id] == draft.custom_id for draft in drafts)


def test_ready_made_bodies_are_kept_as_they_are(tmp_path: Path) -> None:
    bodies = {name: {"model": "m", "messages": [{"content": text}]} for name, text in TEXTS.items()}
    request = {"method": "POST", "url": "/v1/chat/completions"}
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps({"custom_id": n, **request, "body": b}) for n, b in bodies.items()))

    drafts = OpenAIBatchFile(str(path)).resolve({}).drafts()

    assert {draft.custom_id: draft.body for draft in drafts} == bodies
