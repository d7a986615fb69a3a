"""One real Airflow for all end-to-end tests: starting it costs more than most of the tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import Places
from example_dags.demo.stack import AirflowStack
from example_dags.demo.warehouse import load_tickets
from tests.e2e.runs import STORIES, Jobs
from tests.e2e.together import Together
from tests.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

REPOSITORY = Path(__file__).parents[2]

#: End of the last of the three nights that the shipped tickets belong to.
SHIPPED_END = datetime(2026, 1, 17, 2, tzinfo=UTC)


@pytest.fixture(scope="session")
def nights() -> list[tuple[datetime, datetime]]:
    """The last three complete intervals of the nightly DAG, oldest first; each holds tickets."""
    now = datetime.now(UTC)
    end = now.replace(hour=2, minute=0, second=0, microsecond=0)
    if end > now:
        end -= timedelta(days=1)
    return [(end - timedelta(days=n + 1), end - timedelta(days=n)) for n in (2, 1, 0)]


@pytest.fixture(scope="session")
def batch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    """A local batch server without faults; tests may put a scenario and must put ``{}`` afterwards."""
    with BatchServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def story_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    """A second one, which holds every batch half done until it is released."""
    with BatchServer(tmp_path_factory.mktemp("stories")) as server:
        server.put_scenario(STORIES)
        yield server


@pytest.fixture(scope="session")
def rows_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the rows of the tests' own DAGs are, one file a run."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="session")
def places(
    tmp_path_factory: pytest.TempPathFactory,
    nights: list[tuple[datetime, datetime]],
    batch_server: BatchServer,
) -> Places:
    """Where the rows are: a warehouse with the tickets moved to the last three nights, ledger, charge log."""
    folder = tmp_path_factory.mktemp("airflow")
    found = Places(folder / "warehouse.db", folder / "home" / "batch_llm", batch_server.database)
    load_tickets(found.warehouse, later_by=nights[-1][1] - SHIPPED_END)
    return found


@pytest.fixture(scope="session")
def dags_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example DAGs and the tests' own DAGs, in one folder."""
    folder = tmp_path_factory.mktemp("dags")
    for source in (REPOSITORY / "example_dags", REPOSITORY / "tests" / "e2e" / "dags"):
        for file in source.glob("*.py"):
            shutil.copy(file, folder)
    shutil.copy(REPOSITORY / "example_dags" / ".airflowignore", folder)
    return folder


@pytest.fixture(scope="session")
def stack(
    dags_folder: Path,
    places: Places,
    batch_server: BatchServer,
    story_server: BatchServer,
    rows_folder: Path,
    postgres_url: Callable[[], URL],
) -> Iterator[AirflowStack]:
    """A running Airflow with connections ``warehouse``, ``llm_batch`` and ``llm_stories``.

    Its own database is PostgreSQL: Airflow does not support backfills on SQLite beside a scheduler.
    """
    metadata = postgres_url().set(drivername="postgresql+psycopg2")
    airflow = AirflowStack(
        places.state.parent,
        dags_folder,
        pythonpath=[REPOSITORY],
        env={
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata.render_as_string(hide_password=False),
            "AIRFLOW_CONN_LLM_BATCH": batch_server.connection(),
            "AIRFLOW_CONN_LLM_STORIES": story_server.connection(),
            "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "sqlite", "host": str(places.warehouse)}),
            "E2E_ROWS": str(rows_folder),
            "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN": "1",
            "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX": "2",
            # Airflow 3.3 may fail a task whose trigger fires within min_heartbeat_interval, here 1 s.
            "AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY": "6",
            # A held connection is tried again after 5 minutes; here after 8 s.
            "AIRFLOW__BATCH_LLM__PROBE_INTERVAL_MIN": "8",
            "AIRFLOW__BATCH_LLM__PROBE_INTERVAL_MAX": "8",
            # A killed triggerer's triggers move after 30 s without its heartbeat; here after 10 s.
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            # A task whose worker is gone is tried again after 300 s without its heartbeat; here after 30 s.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        },
    )
    with airflow:
        started = set(airflow.components.values())
        yield airflow
        started |= set(airflow.components.values())
    assert [pid for component in started for pid in component.members()] == []


@pytest.fixture(scope="session")
def jobs(stack: AirflowStack, story_server: BatchServer, places: Places, rows_folder: Path) -> Jobs:
    """Starts runs whose batches are held by ``story_server``."""
    stack.client.wait_dag("rows_kept")
    return Jobs(stack, story_server, places, rows_folder)


@pytest.fixture(scope="session")
def together(request: pytest.FixtureRequest, jobs: Jobs) -> Together:
    """The tests that are marked ``@at_once``, all of them begun and ended when the first one needs it."""
    return Together(request.session.items, jobs)
