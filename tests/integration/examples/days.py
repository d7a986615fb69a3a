"""Runs of example DAGs over chosen days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.integration.tasks.runs import Run, Runs


@dataclass(frozen=True)
class Examples:
    """The DAGs of a folder, run for days counted from ``first``."""

    folder: Path
    runs: Runs
    first: datetime

    def dag(self, dag_id: str, file: str | None = None) -> DAG:
        """Return a DAG as the dag-processor finds it.

        :param file: name of its file without ``.py``; None where it is the DAG's id.
        """
        return _bag(self.folder / f"{file or dag_id}.py").dags[dag_id]

    def run(
        self, dag_id: str, day: int = 0, *, params: Mapping[str, Any] | None = None, hours: int = 24
    ) -> Run:
        """Run the DAG for the interval of ``hours`` that begins ``day`` days after the first."""
        start = self.first + timedelta(days=day)
        interval = (start, start + timedelta(hours=hours))
        return self.runs.run(self.dag(dag_id), interval=interval, conf=params)


@cache
def _bag(path: Path) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(path))
    assert not bag.import_errors, bag.import_errors
    return bag
