"""One real Airflow for all end-to-end tests: starting it costs more than most of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_dags.demo.stack import AirflowStack

REPOSITORY = Path(__file__).parents[2]


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
def stack(tmp_path_factory: pytest.TempPathFactory, dags_folder: Path) -> Iterator[AirflowStack]:
    """A running Airflow."""
    airflow = AirflowStack(
        tmp_path_factory.mktemp("airflow"),
        dags_folder,
        pythonpath=[REPOSITORY],
        # A killed triggerer's triggers move after 30 s without its heartbeat; here after 10 s.
        env={"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10"},
    )
    with airflow:
        components = list(airflow.components.values())
        yield airflow
        components = list({*components, *airflow.components.values()})
    assert [pid for component in components for pid in component.members()] == []
