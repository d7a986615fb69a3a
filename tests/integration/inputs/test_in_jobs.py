"""Schemas and sinks at work in whole jobs, without Airflow's tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import CustomIdError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.sinks import SqlSink
from airflow_batch_llm.sources import FileSource
from airflow_batch_llm.sources.base import RowOptions
from tests.integration.engine.conftest import bench, ledger, running_server, server
from tests.integration.inputs.sink_rows import sink_of
from tests.job_bench import Bench

__all__ = ["bench", "ledger", "running_server", "server"]

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(3)}
OBJECT = answer_schema({"type": "object"})


def fails(number: int) -> dict[str, Any]:
    """Make the row of this number fail once."""
    return {"match": {"contains": f"number {number}."}, "fault": "server_error", "times": 1}


@pytest.fixture
def monday(bench: Callable[..., Bench], sqlite_database: str) -> Bench:
    """A settled job whose answers are no JSON, although JSON was asked for."""
    sink = SqlSink(sqlite_database, "answers", key=["id"], create=True).resolve({})
    job = bench(texts=TEXTS, run_id="monday", judge=Judge(OBJECT), policy=RowRetry(max_rounds=0), sink=sink)
    job.run()
    return job


def test_what_is_wrong_with_an_answer_reaches_its_dead_letter(monday: Bench) -> None:
    letters = monday.letters(LetterState.OPEN)

    assert sorted(letter.custom_id for letter in letters) == sorted(TEXTS)
    assert {(letter.code, letter.message) for letter in letters} == {("not_json", "$: json_invalid")}


def test_an_older_run_that_is_settled_once_more_leaves_the_rows_of_a_newer_one(
    monday: Bench, bench: Callable[..., Bench], sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    tuesday = bench(texts={"t-1": "ticket number 1."}, run_id="tuesday", sink=monday.sink)
    tuesday.run()
    assert sql("SELECT id, _run_id FROM answers") == [("t-1", "tuesday")]

    wider = replace(monday, judge=Judge())
    wider.until(Until.RECONCILED)
    wider.call(lambda engine: engine.rejudge())
    settled = wider.until(Until.SETTLED)

    assert (settled.counts["answered"], settled.counts["landed"]) == (3, 2)
    assert sql("SELECT id, _run_id FROM answers ORDER BY id") == [
        ("t-0", "monday"),
        ("t-1", "tuesday"),
        ("t-2", "monday"),
    ]
    written = dict(sql("SELECT _run_id, min(_job_created_at) FROM answers GROUP BY _run_id"))
    assert written == {"monday": wider.job().created_at, "tuesday": tuesday.job().created_at}


def test_answers_are_in_the_table_before_the_others_are_tried_again(
    bench: Callable[..., Bench], sqlite_database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sink = sink_of(sqlite_database, "answers", publish="each_round", create=True)
    job = bench(texts=TEXTS, sink=sink)
    job.server.set_scenario({"rows": [fails(1)]})
    seen: list[Any] = []

    def look(point: str) -> None:
        if point.startswith("submit") and len(job.batches()) > 1:
            seen.append(sql("SELECT id FROM answers ORDER BY id"))

    job.fault = look
    settled = job.run()

    assert seen and seen[0] == [("t-0",), ("t-2",)]
    assert (settled.counts["answered"], settled.counts["landed"]) == (3, 1)
    assert sql("SELECT id, _round FROM answers ORDER BY id") == [("t-0", 0), ("t-1", 1), ("t-2", 0)]


def test_rows_that_left_the_source_leave_the_table_after_a_clear(
    bench: Callable[..., Bench], sqlite_database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sink = sink_of(sqlite_database, "answers", on_withdrawn="delete", create=True)
    job = bench(texts=TEXTS, sink=sink)
    job.run()

    job.clear(texts={"t-0": TEXTS["t-0"], "t-3": "new."}).run()

    assert sql("SELECT id, _revision FROM answers ORDER BY id") == [("t-0", 2), ("t-3", 2)]


def test_a_partition_is_replaced_once_every_row_has_an_answer(
    bench: Callable[..., Bench], sqlite_database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sink = sink_of(
        sqlite_database, "answers", mode="replace_partition", partition={"day": "2026-01-01"}, create=True
    )
    job = bench(texts=TEXTS, sink=sink, policy=RowRetry(max_rounds=0))
    job.run()
    texts = {"t-1": "other.", "t-5": "ticket number 5."}
    later = bench(texts=texts, run_id="later", sink=sink, policy=RowRetry(max_rounds=0))
    later.server.set_scenario({"rows": [fails(5)]})

    settled = later.run()
    assert (settled.counts["dead"], settled.counts["landed"]) == (1, 0)
    assert sql("SELECT id FROM answers ORDER BY id") == [("t-0",), ("t-1",), ("t-2",)]

    settled = later.clear().run()
    assert (settled.counts["dead"], settled.counts["landed"]) == (0, 2)
    assert sql("SELECT id, _run_id, day FROM answers ORDER BY id") == [
        ("t-1", "later", "2026-01-01"),
        ("t-5", "later", "2026-01-01"),
    ]


def test_rows_of_several_files_are_answered_under_their_keys_and_go_out_redacted(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part, ids in enumerate(([1, 2], [3])):
        texts = [f"ticket {n} of Ada Lovelace." for n in ids]
        table = pa.table({"id": ids, "lang": ["de"] * len(ids), "body": texts})
        parquet.write_table(table, tmp_path / f"part-{part}.parquet")
    source = FileSource(f"{tmp_path}/part-*.parquet", key="id").resolve({})
    options = RowOptions(
        carry=("lang",),
        samples=2,
        redact=lambda row: {**row, "body": row["body"].replace("Ada Lovelace", "***")},
    )
    prompt = RowPrompt("{{ row.body }}").resolve({})

    job = bench(drafts=lambda: source.drafts(prompt, options))
    job.run()

    answers = {answer.custom_id: answer for answer in job.answers()}
    assert sorted(answers) == [f"[{n},{sample}]" for n in (1, 2, 3) for sample in (1, 2)]
    assert answers["[3,2]"].key == {"id": 3, "sample": 2}
    assert {tuple(answer.carry.items()) for answer in answers.values()} == {(("lang", "de"),)}
    written = b"".join(path.read_bytes() for path in job.folder.rglob("*") if path.is_file())
    assert b"***" in written and b"Lovelace" not in written


def test_a_repeated_id_is_told_with_file_and_row(bench: Callable[..., Bench], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,body\nt-1,x\nt-2,y\n")
    (tmp_path / "b.csv").write_text("id,body\nt-3,x\nt-2,y\n")
    source = FileSource(f"{tmp_path}/*.csv", key="id").resolve({})
    prompt = RowPrompt("{{ row.body }}").resolve({})
    job = bench(drafts=lambda: source.drafts(prompt))
    order = replace(job.order(), id_origin=source.id_origin, place_name=source.place_name)

    with pytest.raises(CustomIdError) as caught:
        job.call(lambda engine: engine.advance(Until.ENDED, order))

    told = f"{tmp_path}/b.csv, line 3: repeats the custom_id of {tmp_path}/a.csv, line 3"
    assert told in str(caught.value)
    assert job.creates() == 0
