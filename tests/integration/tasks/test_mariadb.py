"""The whole group with its books in MariaDB, through an Airflow connection of type mysql."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sqlalchemy import URL

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.hooks.state import ledger_url
from tests.integration.tasks.desk import DEAD_LETTER, SUBMIT, TASKS, Books, Traffic, Warehouse, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer


@pytest.fixture
def ledger(mariadb_url: Callable[[], URL], monkeypatch: pytest.MonkeyPatch) -> URL:
    """A database without tables, as connection ``ledger``. Its charset would lose what is not in Latin-1."""
    url = mariadb_url()
    fields = {
        "conn_type": "mysql",
        "login": url.username,
        "schema": url.database,
        "extra": {"unix_socket": url.query["unix_socket"], "charset": "latin1", "cursor": "dictcursor"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(fields))
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__LEDGER_CONN_ID", "ledger")
    return url


def test_a_group_keeps_its_books_in_mariadb(
    runs: Runs, traffic: Traffic, server: LocalServer, warehouse: Warehouse, ledger: URL
) -> None:
    server.set_scenario(
        {
            "pace": {"statuses": ["in_progress"]},
            "rows": [
                {"match": {"contains": "number 2."}, "fault": "server_error", "times": 1},
                {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"},
            ],
        }
    )
    dag = desk_dag("mariadb", max_dead_letter_ratio=0.2)

    refused = runs.run(dag)
    assert "BLLM-003" in str(runs.error_of(SUBMIT)) and "batch-llm db migrate" in str(runs.error_of(SUBMIT))
    assert runs.tries(refused)[SUBMIT] == 1 and not traffic.anything

    assert main(["db", "check"]) == 3
    assert (
        main(["db", "migrate"]) == main(["db", "migrate", "--conn", "ledger"]) == main(["db", "check"]) == 0
    )
    run = runs.run(dag)
    assert run.state == "success"
    assert Books.of(run).open_codes() == {"5": "invalid_value"}
    assert runs.xcom(run, DEAD_LETTER)["counts"]["answered"] == 5
    assert (traffic.creates, traffic.sent) == (2, 7)

    traffic.forget()
    warehouse.execute("UPDATE tickets SET body = 'another text: 日本, 🙂' WHERE id = 6")
    assert runs.rerun(dag, run, *TASKS) == "success"
    assert (traffic.creates, traffic.sent) == (1, 1)
    assert Books.of(run).open_codes() == {"5": "invalid_value"}


def test_the_connection_names_a_driver_and_its_socket(ledger: URL) -> None:
    url, schema = ledger_url("ledger")
    assert (url.drivername, url.database, schema) == ("mysql+pymysql", ledger.database, None)
    assert url.query["unix_socket"] == ledger.query["unix_socket"]
