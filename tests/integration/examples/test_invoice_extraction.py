from __future__ import annotations

import pytest

from airflow_batch_llm.core.model import LetterState
from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Books, Warehouse

SCAN = """Supplier: {supplier}
Invoice no: {number}
Issued on: 2026-02-{day:02d}
Currency: EUR
Net: {net}
Tax: {tax}
Total: {total}
"""


def scan(number: str, net: float, tax: float, total: float) -> str:
    return SCAN.format(supplier="Paper & Söhne", number=number, day=7, net=net, tax=tax, total=total)


@pytest.fixture(autouse=True)
def scans(warehouse: Warehouse) -> None:
    warehouse.execute(
        "CREATE TABLE scans (scan_id TEXT PRIMARY KEY, archive_no TEXT, text TEXT, scanned_on TEXT)"
    )
    rows = [(f"s{n}", f"R-{n}", scan(f"R-{n}", 100, n, 100 + n)) for n in range(8)]
    rows += [
        ("sums", "R-90", scan("R-90", 100, 19, 120)),
        ("other", "R-91", scan("R-77", 100, 19, 119)),
    ]
    for row in rows:
        warehouse.execute("INSERT INTO scans VALUES (?, ?, ?, '2026-03-01')", row)


def test_only_invoices_that_add_up_and_are_the_right_one_land(
    examples: Examples, warehouse: Warehouse
) -> None:
    run = examples.run("invoice_extraction")
    assert run.state == "success"  # two of ten are dead, which is allowed
    rows = warehouse.execute("SELECT scan_id, invoice_no, supplier, issued_on, net, tax, total FROM invoices")
    assert sorted(rows) == [
        (f"s{n}", f"R-{n}", "Paper & Söhne", "2026-02-07", 100.0, float(n), 100.0 + n) for n in range(8)
    ]
    letters = {
        letter.custom_id: letter for letter in Books.of(run, "extract.submit").letters(LetterState.OPEN)
    }
    assert {name: letter.code for name, letter in letters.items()} == {
        "sums": "rejected",
        "other": "echo_mismatch",
    }
    assert "do not add up" in letters["sums"].message
    assert [attempt.round for attempt in letters["sums"].attempts] == [0, 1, 2]


def test_a_day_without_scans_is_skipped(examples: Examples) -> None:
    run = examples.run("invoice_extraction", 3)
    assert examples.runs.states(run)["extract.submit"] == "skipped"
