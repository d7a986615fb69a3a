"""No prompt, answer, key or provider's error text reaches Airflow's tables or the logs."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_batch_llm import RowPrompt, RowRetry, SqlSink
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import DEAD_LETTER, SUBMIT, TASKS, Books, Traffic, Warehouse, desk_dag
from tests.integration.tasks.metadata import rows_holding, trigger_kwargs
from tests.integration.tasks.runs import Runs
from tests.integration.tasks.upstream import TalkativeModel
from tests.local_server import LocalServer

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "note": {"type": "string"}},
    "required": ["label", "note"],
    "additionalProperties": False,
}


def _mark(what: str) -> str:
    # Made at run time: the text of this file is itself kept in the metadata database.
    return f"{what}-{secrets.token_hex(8)}"


@dataclass(frozen=True)
class Marks:
    """Texts that stand in one place each and may be found in no other."""

    system: str = field(default_factory=lambda: _mark("system"))
    row: str = field(default_factory=lambda: _mark("row"))
    answer: str = field(default_factory=lambda: _mark("answer"))
    error: str = field(default_factory=lambda: _mark("error"))
    key: str = field(default_factory=lambda: _mark("key"))

    def all(self) -> list[str]:
        return [self.system, self.row, self.answer, self.error, self.key]


@pytest.fixture(scope="module")
def marks() -> Marks:
    return Marks()


@pytest.fixture(scope="module")
def talkative_server(marks: Marks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with (
        TalkativeModel(
            marks.answer, f"This value cannot be used here: row says {marks.row.upper()}, '{marks.error}'."
        ) as model,
        LocalServer(
            tmp_path_factory.mktemp("talkative"), api_key=marks.key, args=("--upstream", model.url)
        ) as server,
    ):
        yield server


@pytest.fixture
def server(talkative_server: LocalServer) -> LocalServer:
    talkative_server.set_scenario({})
    return talkative_server


@pytest.fixture
def tickets(warehouse: Warehouse, marks: Marks) -> None:
    warehouse.execute("DELETE FROM tickets")
    kinds = ["fine", "fine", "refuse:", "refuse:", "garble:", "together:", "together:", "together:"]
    # The last three are the same text: what the provider says of them is the same, and quotes it.
    warehouse.fill({n: f"{kind} {marks.row} {n if n < 6 else 6}" for n, kind in enumerate(kinds, start=1)})


@pytest.mark.usefixtures("tickets")
def test_a_run_with_failures_leaves_ids_counts_and_codes_only(
    runs: Runs,
    server: LocalServer,
    warehouse: Warehouse,
    marks: Marks,
    airflow_home: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_batch_llm")
    server.set_scenario({"pace": {"statuses": ["validating", "in_progress"]}})
    # The table refuses the first answer, and its database would quote it.
    warehouse.execute("CREATE TABLE labels (id INTEGER PRIMARY KEY, label TEXT, note TEXT CHECK (id <> 1))")
    for column in ("_custom_id", "_model", "_job_id", "_run_id", "_landed_at"):
        warehouse.execute(f"ALTER TABLE labels ADD COLUMN {column} TEXT")
    for column, kind in (("_revision", "INTEGER"), ("_round", "INTEGER"), ("_job_created_at", "REAL")):
        warehouse.execute(f"ALTER TABLE labels ADD COLUMN {column} {kind}")
    dag = desk_dag(
        "private",
        prompt=RowPrompt("Label: {{ row.body }}", system=f"You are {marks.system}."),
        output_schema=SCHEMA,
        sink=SqlSink("warehouse", "labels", key=["id"]),
        row_retry=RowRetry(max_rounds=1, dispositions={"bad_request": "retry"}),
    )
    run = runs.run(dag)
    assert runs.states(run)[DEAD_LETTER] == "failed"
    assert "BLLM-060" in str(runs.error_of(DEAD_LETTER)) and "'1'" in str(runs.error_of(DEAD_LETTER))

    # Mended; now only the dead letters make it red.
    warehouse.execute("DROP TABLE labels")
    dag = desk_dag(
        "private",
        prompt=RowPrompt("Label: {{ row.body }}", system=f"You are {marks.system}."),
        output_schema=SCHEMA,
        row_retry=RowRetry(max_rounds=1, dispositions={"bad_request": "retry"}),
    )
    runs.sync(dag)
    first = list(runs.processes)
    assert runs.rerun(dag, run, *TASKS) == "failed"
    error = str(runs.error_of(DEAD_LETTER))
    assert "BLLM-040" in error and "6 of 8" in error and "bad (5)" in error
    assert "; 3 rows say: This value cannot be used here: …" in error
    runs.processes[:0] = first

    books = Books.of(run)
    messages = " ".join(letter.message for letter in books.letters())
    assert marks.error in messages and marks.row in messages, "people find the text in the ledger"
    assert any("deferred" in process.state for process in runs.processes)
    assert list(trigger_kwargs()), "the triggers were written to the database"

    out, err = capfd.readouterr()
    logs = "\n".join(
        p.read_text("utf-8", "replace") for p in (airflow_home / "logs").rglob("*") if p.is_file()
    )
    errors = "\n".join(repr(process.error) for process in runs.processes)
    told = "\n".join([out, err, caplog.text, logs, errors, *(str(r.__dict__) for r in caplog.records)])
    assert "label.dead_letter" in told and books.job_id in told
    assert "revision 1: 1 batches read; rows by verdict: " in told
    assert "8 rows, 2 answered, 6 dead letters (commonest codes: bad (5), not_json (1))" in told
    assert "BatchLLMRedriveOperator(target_dag_id='private'" in told
    stored = json.dumps([value.decode() for value in runs.xcoms(run).values()])
    kept = json.dumps([p.trigger_kwargs for p in runs.processes if p.state == "deferred"])
    serialized_only = {"serialized_dag.data", "dag_code.source_code"}
    for mark in marks.all():
        assert mark not in told and mark.upper() not in told
        assert mark not in stored
        assert mark not in kept
        # A prompt in a DAG file is code; nothing else is there but where Airflow keeps code.
        assert set(rows_holding(mark)) <= serialized_only, mark
    assert rows_holding(books.job_id), "the search finds what is there"


@pytest.mark.usefixtures("tickets")
def test_a_provider_that_refuses_calls_is_not_quoted(
    runs: Runs, server: LocalServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_batch_llm")
    server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 400, "code": "odd_code"}]})
    run = runs.run(desk_dag("private_refusal", output_schema=SCHEMA))
    assert run.state == "failed"
    assert "BLLM-023" in str(runs.error_of(SUBMIT))
    out, err = capfd.readouterr()
    told = f"{out}{err}{caplog.text}{runs.error_of(SUBMIT)!r}"
    assert "The scenario refuses this call" not in told
    assert not rows_holding("The scenario refuses this call")


def test_the_xcom_of_every_task_is_small_for_2000_rows_in_40_batches(
    runs: Runs, shared_server: LocalServer, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_server.set_scenario(
        {
            "pace": {"statuses": ["in_progress"]},
            "rows": [
                {
                    "match": {"contains": f"kind {n}."},
                    "fault": "bad_request",
                    "code": f"a_rather_long_code_{n}",
                }
                for n in range(20)
            ],
        }
    )
    set_llm(monkeypatch, shared_server, extra={"max_requests": 50})
    warehouse.execute("DELETE FROM tickets")
    warehouse.fill({n: f"ticket {n} of kind {n % 40}." for n in range(2000)})
    traffic = Traffic(shared_server)
    run = runs.run(desk_dag("xcom", max_dead_letter_ratio=0.6, sink=None))
    assert run.state == "success"
    assert traffic.creates == 40 and traffic.sent == 2000
    sizes = {name: len(value) for name, value in runs.xcoms(run).items()}
    assert set(sizes) >= {f"{task}/return_value" for task in TASKS}
    assert max(sizes.values()) < 4096
    kwargs = [len(json.dumps(p.trigger_kwargs)) for p in runs.processes if p.state == "deferred"]
    assert kwargs and max(kwargs) < 4096
