"""The examples of README and docs, taken from the pages and run: on a real PostgreSQL, over real HTTP."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.pool import NullPool

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.hooks.batch_llm import BatchLLMHook
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.local_server import LocalServer
from tests.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LEDGER = (ROOT / "docs" / "ledger.md").read_text()
#: The night of the example's tickets: a manual run at this moment has the interval that ends at 02:00.
MOMENT = datetime(2026, 1, 16, 3, tzinfo=UTC)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def load_dags(path: Path) -> list[DAG]:
    """Import a DAG file as Airflow does and return its DAGs."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(path, bundle_path=path.parent)
    assert bag.import_errors == {}
    return list(bag.dags.values())


@pytest.fixture
def dags_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The README's Python examples as the files that their first lines name."""
    folder = tmp_path / "dags"
    folder.mkdir()
    for block in blocks(README, "python"):
        name = re.match(r"# dags/(\w+\.py)\n", block)
        assert name is not None, "a Python example of the README names its file"
        (folder / name[1]).write_text(block)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("labels", None)


@pytest.fixture
def warehouse(postgres_url: Callable[[], URL]) -> Engine:
    engine = create_engine(postgres_url(), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE tickets (id BIGINT PRIMARY KEY, body TEXT, updated_at TIMESTAMPTZ)")
        )
        insert = text("INSERT INTO tickets VALUES (:id, :body, :at)")
        for number in range(1, 13):
            inside = number <= 10
            at = datetime(2026, 1, 15, 12, tzinfo=UTC) if inside else datetime(2026, 1, 17, tzinfo=UTC)
            connection.execute(insert, {"id": number, "body": f"Ticket number {number}.", "at": at})
    return engine


@pytest.fixture
def ledger(postgres_url: Callable[[], URL], monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A ledger whose tasks may do exactly what the page on the ledger grants."""
    owner = postgres_url()
    assert main(["db", "migrate", "--url", owner.render_as_string(hide_password=False)]) == 0
    (grants,) = [block for block in blocks(LEDGER, "sql") if "GRANT" in block]
    engine = create_engine(owner, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS batch_llm"))
        connection.execute(text("CREATE ROLE batch_llm LOGIN"))
        connection.execute(text(grants))
    monkeypatch.setenv("AIRFLOW_CONN_BATCH_LLM_LEDGER", connection_json(owner.set(username="batch_llm")))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "batch_llm_ledger")
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP OWNED BY batch_llm"))
        connection.execute(text("DROP ROLE batch_llm"))


def connection_json(url: URL) -> str:
    """Return an Airflow connection to an embedded server, which is reached by its socket."""
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": url.host or url.query["host"],
            "login": url.username,
            "password": url.password,
            "schema": url.database,
            "port": url.port,
        }
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def surroundings(
    monkeypatch: pytest.MonkeyPatch, server: LocalServer, warehouse: Engine, ledger: Engine, tmp_path: Path
) -> Path:
    """The connections and settings that the README's examples name; returns the workspace."""
    workspace = tmp_path / "workspace"
    monkeypatch.setenv(
        "AIRFLOW_CONN_LLM_BATCH",
        json.dumps({"conn_type": "batch_llm", "host": server.url, "password": server.api_key}),
    )
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", connection_json(warehouse.url))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY", "0")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN", "0.05")
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__WORKSPACE", f"file://{workspace}")
    return workspace


def test_the_readmes_job_runs_and_its_dead_letters_are_re_driven(
    surroundings: Path,
    dags_folder: Path,
    sync_dag: Callable[[DAG], DAG],
    server: LocalServer,
    warehouse: Engine,
    ledger: Engine,
) -> None:
    server.set_scenario(
        {
            "rows": [
                {"match": {"contains": "number 3."}, "fault": "server_error", "times": 1},
                {"match": {"contains": "number 7."}, "fault": "bad_request", "code": "invalid_value"},
            ]
        }
    )
    (nightly,) = load_dags(dags_folder / "nightly_labels.py")
    for task in nightly.tasks:
        task.retries = 0

    run = sync_dag(nightly).test(logical_date=MOMENT)

    # One of ten is dead, which is more than the hundredth that the example allows.
    assert str(run.state) == "failed"
    with warehouse.connect() as connection:
        found = connection.execute(text("SELECT id, category, _round FROM ticket_labels ORDER BY id")).all()
    assert [row.id for row in found] == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert {row.id for row in found if row._round == 1} == {3}
    assert {row.category for row in found} <= {"billing", "bug", "how_to", "other"}
    (query,) = blocks(README, "sql")
    with ledger.connect() as connection:
        assert [tuple(row)[:6] for row in connection.execute(text(query))] == [
            (run.run_id, "label_tickets.submit", -1, "7", "bad_request", "invalid_value")
        ]

    server.set_scenario({})
    (redrive,) = load_dags(dags_folder / "redrive_labels.py")
    run = sync_dag(redrive).test(run_conf={"run_id": run.run_id, "reason": "mended"})

    assert str(run.state) == "success"
    with warehouse.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM ticket_labels")).scalar() == 10
    with ledger.connect() as connection:
        assert connection.execute(text(query)).all() == []
        (changes,) = connection.execute(text("SELECT changes FROM batch_llm_dead_letter")).scalars()
        assert "mended" in {json.loads(line)["reason"] for line in changes.splitlines()}
        for question in blocks(LEDGER, "sql"):
            if question.startswith("SELECT"):
                connection.execute(text(question)).all()
    assert server.summary()["answered_twice"] == 0
    assert_answers_are_readable_without_the_package(surroundings)
    assert_files_are_those_of_the_page(surroundings)


def assert_answers_are_readable_without_the_package(workspace: Path) -> None:
    (example,) = blocks((ROOT / "docs" / "workspace.md").read_text(), "python")
    names: dict[str, Any] = {}
    exec(compile(example, "docs/workspace.md", "exec"), names)
    (manifest,) = workspace.glob("*/nightly_labels/*/label_tickets.submit/-1/results/1/_manifest.json")

    answers = list(names["read_results"](manifest.parent))

    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(1, 11))
    assert all(set(answer["output"]) == {"category", "needs_human"} for answer in answers)


#: Files of jobs that ask for them, which the README's job does not: Parquet, reuse.
ON_DEMAND = (".parquet", "duplicates.jsonl", "reused.jsonl")


def assert_files_are_those_of_the_page(workspace: Path) -> None:
    """Every file has a place in the tree of the page on the workspace, and every place has a file."""
    page = (ROOT / "docs" / "workspace.md").read_text()
    _, *lines = blocks(page, "text")[0].splitlines()
    places: set[str] = set()
    folders: list[str] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 4 - 1
        names = line.strip().split(", ")
        if names[0].endswith("/"):
            folders[depth:] = [names[0]]
        else:
            places |= {"".join(folders[:depth]) + name for name in names}
    patterns = {place: re.compile(_pattern(place)) for place in places}
    files = [path for path in workspace.rglob("*") if path.is_file()]
    relative = ["/".join(path.relative_to(workspace).parts[5:]) for path in files]

    for file in relative:
        assert any(pattern.fullmatch(file) for pattern in patterns.values()), file
    for place, pattern in patterns.items():
        assert place.endswith(ON_DEMAND) or any(pattern.fullmatch(file) for file in relative), place


def _pattern(place: str) -> str:
    """Names in angle brackets and runs of zeros stand for others of their kind."""
    return re.sub(r"<[^>]+>", "[^/]+", re.sub(r"0{4,}", r"\\d+", re.escape(place)))


def test_the_readmes_path_on_one_machine_ends_with_a_label(
    server: LocalServer, dags_folder: Path, tmp_path: Path
) -> None:
    section = README.partition("## Your own DAG against the local server\n")[2].partition("\n## ")[0]
    serve, *lines = "".join(blocks(section, "sh")).splitlines()
    (parameters,) = re.findall(r"`(updated_at >= :since AND updated_at < :until)`", section)
    assert json.loads(_value_of("AIRFLOW_CONN_LLM_BATCH", lines))["password"] == serve.split()[-1]
    nightly = dags_folder / "nightly_labels.py"
    bound = re.sub(r"updated_at >= %\(since\)s.*%\(until\)s", parameters, nightly.read_text())
    assert "%(" not in bound
    nightly.write_text(bound)
    home = tmp_path / "home"
    home.mkdir()
    dags_folder.rename(home / "dags")
    here = {
        "http://127.0.0.1:8765/v1": server.url,
        "its-key": server.api_key,
        "/tmp/warehouse.db": str(tmp_path / "warehouse.db"),
    }
    script = "\n".join(["set -e", *lines])
    for shown, real in here.items():
        assert shown in script
        script = script.replace(shown, real)

    done = subprocess.run(["sh", "-c", script], env=_one_machine(home), capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.fullmatch(r"1\|billing\|[01]", done.stdout.splitlines()[-1])
    assert (home / "batch_llm" / "ledger.db").exists()


def _value_of(variable: str, lines: list[str]) -> str:
    (line,) = [line for line in lines if line.startswith(f"export {variable}=")]
    return line.partition("=")[2].strip("'")


def _one_machine(home: Path) -> dict[str, str]:
    """The environment of somebody with an empty Airflow home, who does not want to wait for first looks."""
    own = ("AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__DATABASE__", "AIRFLOW__LOGGING__BASE", "AIRFLOW_CONN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY": "0",
        "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN": "0.05",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(_sqlite3(home))]),
    }


def _sqlite3(home: Path) -> Path:
    """Return a folder with a command that does what the README asks of sqlite3, where none is installed."""
    folder = home / "bin"
    folder.mkdir()
    program = folder / "sqlite3"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sqlite3, sys\n"
        "with sqlite3.connect(sys.argv[1]) as connection:\n"
        "    for row in connection.execute(sys.argv[2]):\n"
        "        print(*row, sep='|')\n"
    )
    program.chmod(0o755)
    return folder


#: Pages whose examples speak to a server or read a job: other tests run them.
ABOUT_A_LIVING_ONE = {"local_server.md", "results.md", "retention.md", "workspace.md"}
PAGES = ["README.md"] + sorted(
    f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name not in ABOUT_A_LIVING_ONE
)


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_run_and_their_dags_can_be_stored(page: str, tmp_path: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    for number, block in enumerate(blocks((ROOT / page).read_text(), "python")):
        file = tmp_path / f"example_{number}.py"
        file.write_text(block)
        exec(compile(block, f"{page}, example {number}", "exec"), {"__name__": f"example_{number}"})
        dags = load_dags(file)
        assert bool(dags) == ("DAG" in block)
        for dag in dags:
            assert json.dumps(DagSerialization.to_dict(dag))


@pytest.mark.parametrize(
    "line",
    re.findall(r"^export (AIRFLOW_CONN_LLM\w+='.*')$", README, re.MULTILINE),
    ids=lambda line: line[:24],
)
def test_connections_of_the_readme_can_be_used(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, value = line.partition("=")
    monkeypatch.setenv(name, value.strip("'"))

    account = BatchLLMHook(name.removeprefix("AIRFLOW_CONN_").lower()).account()

    assert account.api_key == json.loads(value.strip("'"))["password"]
    assert account.provider == json.loads(value.strip("'"))["extra"].get("dialect", "openai")


@pytest.mark.parametrize(
    "line",
    re.findall(
        r"^export (AIRFLOW_CONN_LLM_\w+='.*')$", (ROOT / "docs" / "providers.md").read_text(), re.MULTILINE
    ),
    ids=lambda line: line.partition("=")[0],
)
def test_connections_of_the_providers_page_can_be_used(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, value = line.partition("=")
    monkeypatch.setenv(name, value.strip("'"))
    conn_id = name.removeprefix("AIRFLOW_CONN_").lower()

    hook = BatchLLMHook(conn_id)

    assert hook.make_backend().provider == hook.account().provider == conn_id.removeprefix("llm_")
    assert hook.account().model == json.loads(value.strip("'"))["extra"]["model"]


def test_the_providers_page_shows_a_connection_for_each_kind_of_provider() -> None:
    page = (ROOT / "docs" / "providers.md").read_text()
    shown = set(re.findall(r"^export AIRFLOW_CONN_LLM_(\w+)=", page, re.MULTILINE))
    assert shown == {"GROQ", "AZURE", "ANTHROPIC", "GEMINI", "MISTRAL", "GENERIC"}


def test_the_readme_shows_connections() -> None:
    assert len(re.findall(r"^export AIRFLOW_CONN_LLM", README, re.MULTILINE)) == 4


def test_questions_to_the_ledger_work_on_sqlite_too(tmp_path: Path) -> None:
    open_default_sqlite(tmp_path / "ledger.db")
    errors = (ROOT / "docs" / "runbook.md").read_text()
    queries = [query for page in (README, LEDGER, errors) for query in blocks(page, "sql")]
    questions = [query for query in queries if query.startswith("SELECT")]

    assert len(questions) >= 5
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        for question in questions:
            assert connection.execute(question).fetchall() == []


def test_the_ddl_of_the_docs_makes_the_tables_that_migrate_makes(postgres_url: Callable[[], URL]) -> None:
    migrated, written = postgres_url(), postgres_url()
    assert main(["db", "migrate", "--url", migrated.render_as_string(hide_password=False)]) == 0
    (ddl,) = [block for block in blocks(LEDGER, "sql") if block.startswith("CREATE TABLE")]
    with create_engine(written, poolclass=NullPool).begin() as connection:
        connection.execute(text(ddl))

    assert _columns(written) == _columns(migrated)


def _columns(url: URL) -> list[tuple[Any, ...]]:
    query = text(
        "SELECT table_name, column_name, data_type, character_maximum_length, collation_name, is_nullable "
        "FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'batch_llm_version' "
        "UNION ALL SELECT tablename, indexname, indexdef, NULL, NULL, NULL FROM pg_indexes "
        "WHERE schemaname = 'public' AND tablename <> 'batch_llm_version' ORDER BY 1, 2, 3"
    )
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return [tuple(row) for row in connection.execute(query)]
