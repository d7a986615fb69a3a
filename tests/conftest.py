"""Every test session has an Airflow home of its own, set before anything imports Airflow."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(tempfile.mkdtemp(prefix="batch-llm-tests-"))


def _isolate_airflow() -> None:
    """Forget the caller's Airflow: home, settings, connections, variables. Children inherit it."""
    for name in list(os.environ):
        if name.startswith(("AIRFLOW_", "_AIRFLOW_", "BATCH_LLM_", "OPENAI_")):
            del os.environ[name]
    (HOME / "dags").mkdir()
    os.environ.update(
        {
            "AIRFLOW_HOME": str(HOME),
            "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
            # A key that only this throw-away home uses; 32 zero bytes.
            "AIRFLOW__CORE__FERNET_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-the-tests-of-this-package-0123456789abcdef",
        }
    )
    search = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(search))


_isolate_airflow()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder: ``-m unit``, ``-m integration``, ``-m e2e``."""
    for item in items:
        for folder in ("unit", "integration", "e2e"):
            if item.path.is_relative_to(ROOT / "tests" / folder):
                item.add_marker(folder)


def pytest_unconfigure() -> None:
    """Remove the session's home."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The session's AIRFLOW_HOME."""
    return HOME
