"""``read_results``: whatever names a job, its answers come back as plain rows; tables have typed columns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm import read_results
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.exceptions import ConfigurationError, ResultsError, WorkspaceError
from tests.integration.results.conftest import SCHEMA, drafts, formats, settled
from tests.job_bench import Bench

TEXTS = {"t-1": "one", "t-2": "two", "t-3": "bad three"}
BAD = {"rows": [{"match": {"contains": "bad"}, "fault": "bad_request"}]}
ONCE = RowRetry(max_rounds=0)


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """Two answers and a dead row; two rows a batch, so that there are two parts."""
    made = bench(texts=TEXTS, drafts=drafts(TEXTS), policy=ONCE, options={"max_requests": 2})
    made.server.set_scenario(BAD)
    made.run()
    return made


def ids(rows: Any) -> list[str]:
    return [row["custom_id"] for row in rows]


def test_the_ways_to_name_a_job_all_lead_to_its_rows(job: Bench) -> None:
    key, folder = job.key, job.root / "results" / "1"
    xcom = {"job_id": key.job_id, "revision": 1, "results": "elsewhere"}
    by_task = {"dag_id": key.dag_id, "run_id": key.run_id}
    found = [
        read_results(xcom),
        read_results(key.job_id),
        read_results(key.job_id[:8].upper()),
        read_results(folder),
        read_results(f"file://{folder}"),
        read_results(str(folder / "_manifest.json")),
        *(read_results(**by_task, task_id=name) for name in ("labels.submit", "labels.retry", "labels")),
    ]
    assert [ids(results) for results in found] == [["t-1", "t-2"]] * len(found)


def test_a_row_is_a_plain_dict_with_its_columns(job: Bench) -> None:
    results = read_results(job.key.job_id)
    row = next(results)
    assert list(results)[0]["custom_id"] == "t-2", "iterating goes on where it was"
    assert (row["key"], row["carry"]) == ({"id": "t-1"}, {"team": "team of t-1"})
    assert row["origin"] == "paid" and row["round"] == 0 and row["usage"]["input"] > 0
    assert set(row) == {
        "custom_id", "wire_id", "output", "model", "usage", "finish_reason", "round", "origin", "key", "carry"
    }  # fmt: skip
    assert results.manifest["rows"] == 2 and results.manifest["job"] == job.key.job_id


def test_dead_rows_follow_the_answers_with_verdict_code_and_columns(job: Bench) -> None:
    *answers, dead = read_results(job.key.job_id, dead=True)
    assert [(row["verdict"], row["code"]) for row in answers] == [("ok", "ok")] * 2
    assert dead["custom_id"] == "t-3" and dead["output"] is None
    assert dead["verdict"] == "bad_request" and dead["code"] != "ok"
    assert (dead["key"], dead["carry"]) == ({"id": "t-3"}, {"team": "team of t-3"})
    assert ids(read_results(job.root / "results" / "1", dead=True)) == ["t-1", "t-2", "t-3"]


def test_rows_that_never_became_requests_are_among_the_dead(bench: Callable[..., Bench]) -> None:
    texts = {"t-1": "one", "t-2": "x" * 3000}
    job = settled(bench, texts, policy=ONCE, options={"max_line_bytes": 1000})
    dead = list(read_results(job.key.job_id, dead=True))[1]
    assert (dead["custom_id"], dead["verdict"], dead["key"]) == ("t-2", "too_large", {"id": "t-2"})


def test_of_dead_rows_only_those_that_count_are_told(job: Bench) -> None:
    """Discarded by a person: still dead. Withdrawn: no row of the job any more."""
    wire_ids = [letter.wire_id for letter in job.letters()]
    who = {"actor": "ann", "reason": "test data"}
    job.ledger.move_dead_letters(
        job.key.job_id, wire_ids, to=LetterState.DISCARDED, expect=[LetterState.OPEN], **who
    )
    assert ids(read_results(job.key.job_id, dead=True)) == ["t-1", "t-2", "t-3"]

    fewer = {"t-1": "one", "t-4": "bad four"}
    job.clear(texts=fewer, drafts=drafts(fewer)).run()
    assert ids(read_results(job.key.job_id, dead=True)) == ["t-1", "t-4"]


def test_a_file_that_differs_from_the_manifest_ends_the_rows_with_an_error(job: Bench) -> None:
    part = next((job.root / "results" / "1").glob("part-*.jsonl"))
    part.write_bytes(part.read_bytes().replace(b"t-1", b"t-9"))
    with pytest.raises(WorkspaceError, match="SHA-256 differs"):
        list(read_results(job.key.job_id))


def test_what_names_no_results_is_told(job: Bench) -> None:
    for ref, names, error, told in [
        ("ffffffffffff", {}, ResultsError, "there is no job ffffffffffff"),
        ({"state": "settled"}, {}, ResultsError, "names no job"),
        (17, {}, ResultsError, "the int names no results"),
        ("labels", {}, ResultsError, "'labels' names no results"),
        (None, {}, ConfigurationError, "dag_id, run_id and task_id"),
        (None, {"dag_id": "d", "run_id": "r"}, ConfigurationError, "needed together"),
        (None, {"dag_id": "d", "run_id": "r", "task_id": "t"}, ResultsError, "no job of task t in run r"),
        ("/nowhere/results/1", {}, ResultsError, "there are no results in /nowhere/results/1"),
    ]:
        with pytest.raises(error, match=told):
            read_results(ref, **names)  # type: ignore[arg-type]


def test_a_job_without_results_yet_says_its_state(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": {"seconds": 600}})
    job.step(1, submitting=True)  # type: ignore[arg-type]
    with pytest.raises(ResultsError, match="it is running"):
        read_results(job.key.job_id)


# -- tables ----------------------------------------------------------------------------------------
def test_a_table_has_a_column_for_each_property_of_the_schema(bench: Callable[..., Bench]) -> None:
    job = settled(bench, {"t-1": "one", "t-2": "two"}, judge=Judge(SCHEMA), template=structured())
    table = read_results(job.key.job_id).to_arrow()
    assert table.column_names[:6] == ["custom_id", "id", "team", "label", "stars", "tags"]
    assert table.column_names[6:] == [
        "model", "finish_reason", "round", "origin", "usage_input", "usage_output", "usage_cached",
        "usage_cache_write", "usage_reasoning", "wire_id",
    ]  # fmt: skip
    types = {name: str(table.schema.field(name).type) for name in ("label", "stars", "tags", "usage_input")}
    assert types == {"label": "string", "stars": "int64", "tags": "string", "usage_input": "int64"}
    frame = read_results(job.root / "results" / "1").to_pandas()
    assert list(frame["custom_id"]) == ["t-1", "t-2"] and set(frame["label"]) <= {"bug", "billing"}
    assert list(frame.columns) == table.column_names, "a folder alone tells the schema as well"


def structured() -> Any:
    from airflow_batch_llm.core.model import RequestTemplate
    from tests.job_bench import CHAT

    assert SCHEMA is not None
    return RequestTemplate(CHAT, "m-1", {"max_tokens": 100}, SCHEMA.json_schema, SCHEMA.name)


def test_a_table_with_dead_rows_has_their_verdicts(job: Bench) -> None:
    table = read_results(job.key.job_id, dead=True).to_arrow()
    assert table.column("verdict").to_pylist() == ["ok", "ok", "bad_request"]
    assert table.column("output").to_pylist()[2] is None
    assert table.column("id").to_pylist() == ["t-1", "t-2", "t-3"]


@pytest.mark.parametrize(("library", "method"), [("pyarrow", "to_arrow"), ("pandas", "to_pandas")])
def test_a_library_that_is_not_installed_is_named(
    job: Bench, monkeypatch: pytest.MonkeyPatch, library: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError, match=f"needs {library}, which is not installed"):
        getattr(read_results(job.key.job_id), method)()


# -- Parquet ---------------------------------------------------------------------------------------
def test_each_part_is_published_as_parquet_too_and_the_manifest_names_it(bench: Callable[..., Bench]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    job = settled(
        bench,
        {f"t-{n}": f"text {n}" for n in range(5)},
        results_formats=formats(),
        options={"max_requests": 2},
    )
    results = read_results(job.key.job_id)
    parts = results.manifest["parts"]
    folder = job.root / "results" / "1"
    named = [form["path"] for part in parts for form in part["forms"]]
    assert len(parts) == 3 and named == [p["path"].replace(".jsonl", ".parquet") for p in parts]
    assert {path.name for path in folder.glob("*.parquet")} == set(named)
    tables = [pq.read_table(folder / name, partitioning=None) for name in named]
    assert len({str(table.schema) for table in tables}) == 1, "every part has the same columns"
    whole = pa.concat_tables(tables)
    assert whole.num_rows == 5 and whole.schema.names == results.to_arrow().schema.names
    by_id = {row["custom_id"]: row for row in whole.to_pylist()}
    assert {row["custom_id"]: row["output"] for row in results} == {i: r["output"] for i, r in by_id.items()}


def test_settling_again_replaces_the_parquet_files(bench: Callable[..., Bench]) -> None:
    job = settled(bench, {"t-1": "one"}, results_formats=formats())
    folder: Path = job.root / "results" / "1"
    before = {path.name for path in folder.glob("part-*")}
    job.settle()
    after = {path.name for path in folder.glob("part-*")}
    assert len(after) == 2 and not before & after
