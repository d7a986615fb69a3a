"""What the demo does when Airflow does not have its DAG, told by a server that answers as Airflow does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from example_dags.demo import __main__ as demo
from example_dags.demo.rest import AirflowClient, DagImportFailed

BROKEN = {"filename": "nightly.py", "stack_trace": "Traceback:\n  No module named 'labels'\n"}


@contextmanager
def airflow(*, dags: set[str], errors: list[dict[str, str]]) -> Iterator[AirflowClient]:
    """An api-server that has these DAGs and these import errors."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer(201, {"access_token": "a-token"})

        def do_GET(self) -> None:
            if self.path == "/api/v2/importErrors":
                self.answer(200, {"import_errors": errors, "total_entries": len(errors)})
            elif (dag_id := self.path.removeprefix("/api/v2/dags/")) in dags:
                self.answer(200, {"dag_id": dag_id})
            else:
                self.answer(404, {"detail": "not found"})

        def answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = AirflowClient(f"http://127.0.0.1:{server.server_port}", "admin", "secret")
        try:
            yield client
        finally:
            client.close()
            server.shutdown()
            thread.join()


def test_a_dag_that_does_not_import_is_told_at_once_with_airflows_own_error() -> None:
    with (
        airflow(dags={"other"}, errors=[BROKEN]) as client,
        pytest.raises(
            DagImportFailed, match=r"no DAG nightly(.|\n)*nightly\.py:\n(.|\n)*named 'labels'"
        ) as told,
    ):
        client.wait_dag("nightly", timeout=3600)

    assert told.value.errors == {"nightly.py": BROKEN["stack_trace"]}


def test_a_dag_that_is_there_is_returned_whatever_other_files_do() -> None:
    with airflow(dags={"nightly"}, errors=[BROKEN]) as client:
        assert client.wait_dag("nightly") == {"dag_id": "nightly"}


def test_a_dag_that_is_not_there_although_all_files_import_is_waited_for() -> None:
    with airflow(dags=set(), errors=[]) as client, pytest.raises(TimeoutError, match="DAG nightly"):
        client.wait_dag("nightly", timeout=0.0)


def test_the_demo_ends_with_the_import_error_and_no_traceback_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_demo(folder: Path, model: object, *, stay: bool) -> int:
        raise DagImportFailed("nightly", {BROKEN["filename"]: BROKEN["stack_trace"]})

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(demo.signal, "signal", lambda signum, handler: None)

    assert demo.main(["--dir", str(tmp_path / "demo")]) == 1
    assert "No module named 'labels'" in capsys.readouterr().err
