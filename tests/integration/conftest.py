"""A metadata database for the session, and a way to run a DAG that a test defines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.sdk import DAG

BUNDLE = "tests"


@pytest.fixture(scope="session", autouse=True)
def airflow_db(airflow_home: object) -> Iterator[None]:
    """Create the metadata database once; it goes with the session's home."""
    from airflow.utils.db import initdb

    initdb()
    yield


@pytest.fixture
def sync_dag(airflow_db: None) -> Callable[[DAG], DAG]:
    """Return a function that makes a DAG known to the database, so that ``dag.test()`` can run it."""

    def sync(dag: DAG) -> DAG:
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.serialization.definitions.dag import SerializedDAG
        from airflow.serialization.serialized_objects import LazyDeserializedDAG
        from airflow.utils.session import create_session

        with create_session() as session:
            session.merge(DagBundleModel(name=BUNDLE))
            session.flush()
            lazy = LazyDeserializedDAG.from_dag(dag)
            SerializedDAG.bulk_write_to_db(BUNDLE, None, [lazy], session=session)
            SerializedDagModel.write_dag(lazy, bundle_name=BUNDLE, session=session)
        return dag

    return sync
