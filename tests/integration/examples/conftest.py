"""Each example DAG, as it stands in ``example_dags``, over a small warehouse and the local server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.examples.days import Examples
from tests.integration.tasks.conftest import runs, server, settings, shared_server, traffic, warehouse

if TYPE_CHECKING:
    from tests.integration.tasks.runs import Runs

__all__ = ["runs", "server", "settings", "shared_server", "traffic", "warehouse"]

FOLDER = Path(__file__).resolve().parents[3] / "example_dags"


@pytest.fixture(scope="package", autouse=True)
def importable() -> Iterator[None]:
    """Airflow puts the DAG folder on the path, so that DAG files can import their neighbours.

    Other tests have DAG folders with a ``labels.py`` of their own.
    """
    forget_neighbours()
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path[:] = [entry for entry in sys.path if entry != str(FOLDER)]
    forget_neighbours()


def forget_neighbours() -> None:
    """Let the next import of a module that lies beside the example DAGs look for it anew."""
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def examples(runs: Runs) -> Examples:
    return Examples(FOLDER, runs, datetime(2026, 3, 1, tzinfo=UTC))
