"""``metrics``: the numbers that tasks send, for other monitoring."""

from __future__ import annotations

from airflow_batch_llm.core.model import BatchState, HoldOrigin
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.storage.ledgers import batch_in

pytestmark = SQLITE


def test_metrics_are_printed_for_programs_and_for_people(ledger: SqlLedger, command: Command) -> None:
    batch_in(ledger, BatchState.SUBMITTED)
    ledger.hold_connection("llm", code="", origin=HoldOrigin.PERSON, reason="budget", probe_at=None)
    found = {(s["name"], *s["tags"].items()): s["value"] for s in printed_json(command, "metrics")}
    assert found[("batch_llm.batches.in_flight",)] == 1
    assert found[("batch_llm.rows.pending",)] == 10
    assert found["batch_llm.connection.held", ("conn_id", "llm")] == 1
    lines = [line.split() for line in command("metrics")[1].splitlines()]
    assert lines[0] == ["NAME", "VALUE", "TAGS"]
    assert ["batch_llm.connection.batches_in_flight", "1", "conn_id=llm"] in lines


def test_an_empty_ledger_has_its_gauges_too(ledger: SqlLedger, command: Command) -> None:
    found = printed_json(command, "metrics")
    assert len(found) == 7 and all(sample["value"] == 0 for sample in found)
