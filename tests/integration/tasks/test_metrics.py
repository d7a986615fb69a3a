"""The numbers that a run's tasks send, as they arrive on a StatsD socket."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from airflow_batch_llm.cli.main import main
from airflow_batch_llm.metrics import LEDGER_GAUGES
from airflow_batch_llm.operators import metrics
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import DEAD_LETTER, SUBMIT, Books, desk_dag
from tests.integration.tasks.runs import Runs
from tests.local_server import LocalServer

_LINE = re.compile(r"airflow\.(?P<name>batch_llm\.[^,:]+)(?P<tags>[^:]*):(?P<value>[^|]+)\|(?P<kind>[cg])")


class StatsD:
    """A StatsD server: counters added up, each gauge's values in the order in which they came.

    :param counters: (name, tags) -> sum; tags as ``conn_id=…,dag_id=…``.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.counters: dict[tuple[str, str], float] = defaultdict(float)
        self.gauges: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take in what has arrived and stop."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", self.port))
            self._thread.join(10)
            self._socket.close()

    def _listen(self) -> None:
        while data := self._socket.recv(65_536):
            for line in data.decode().splitlines():
                if (found := _LINE.fullmatch(line)) is None:
                    continue
                key = found["name"], ",".join(sorted(found["tags"].strip(",").split(",")))
                if found["kind"] == "c":
                    self.counters[key] += float(found["value"])
                else:
                    self.gauges[key].append(float(found["value"]))


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsD]:
    server = StatsD()
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.port))
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    # Each task process does so when it starts.
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
    yield server
    server.close()
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)


def test_a_run_sends_what_became_of_its_rows_and_batches(
    runs: Runs, server: LocalServer, statsd: StatsD, capsys: pytest.CaptureFixture[str]
) -> None:
    # One row dies at once, one is answered in the retry round.
    server.set_scenario(
        {
            "rows": [
                {"match": {"contains": "number 1."}, "fault": "bad_request", "code": "invalid_value"},
                {"match": {"contains": "number 2."}, "fault": "server_error", "times": 1},
            ]
        }
    )
    before = dict(json_gauges(capsys))
    run = runs.run(desk_dag("measured", max_dead_letter_ratio=1.0))
    assert runs.states(run)[DEAD_LETTER] == "success"
    statsd.close()

    tags = "conn_id=llm_batch,dag_id=measured"
    expected = {"rows.answered": 5, "rows.dead": 1, "rows.retried": 1, "batches.sent": 2, "batches.ended": 2}
    assert dict(statsd.counters) == {(f"batch_llm.{name}", tags): n for name, n in expected.items()}

    flying = statsd.gauges["batch_llm.connection.batches_in_flight", "conn_id=llm_batch"]
    assert max(flying) == flying[-1] + 1, "what earlier tests of the ledger left in flight is in both"
    assert statsd.gauges["batch_llm.dag.dead_letters_open", "dag_id=measured"][-1] == 1
    assert statsd.gauges["batch_llm.connection.held", "conn_id=llm_batch"][-1] == 0
    after = dict(json_gauges(capsys))
    last = {name: values[-1] for (name, own), values in statsd.gauges.items() if not own}
    assert set(last) == set(LEDGER_GAUGES)
    assert after == {**last, "batch_llm.batches.oldest_age": after["batch_llm.batches.oldest_age"]}
    open_before = before["batch_llm.dead_letters.open"]
    assert after["batch_llm.dead_letters.open"] == open_before + 1


def json_gauges(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, float]]:
    """What ``batch-llm metrics`` prints of the whole ledger."""
    capsys.readouterr()
    assert main(["metrics", "--json"]) == 0
    for sample in json.loads(capsys.readouterr().out):
        if not sample["tags"]:
            yield sample["name"], sample["value"]


def test_a_held_connection_is_seen(
    runs: Runs, server: LocalServer, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_llm(monkeypatch, server, password="wrong-key")
    runs.run(desk_dag("measured_hold"))
    statsd.close()
    assert statsd.gauges["batch_llm.connection.held", "conn_id=llm_batch"][-1] == 1
    assert statsd.gauges["batch_llm.connections.held", ""][-1] == 1


def test_no_job_fails_for_want_of_a_metric(
    runs: Runs, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise OSError("nobody listens")

    monkeypatch.setattr(metrics, "read_facts", broken)
    monkeypatch.setattr(stats, "incr", broken)
    run = runs.run(desk_dag("unmeasured"))
    assert run.state == "success"
    assert Books.of(run).job.counts["answered"] == 6


def test_nothing_is_read_where_metrics_are_off(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*args: object) -> None:
        raise AssertionError("read although nobody listens")

    monkeypatch.setattr(metrics, "tally", unwanted)
    run = runs.run(desk_dag("not_measured"))
    assert run.state == "success" and runs.states(run)[SUBMIT] == "success"
