"""The recorded cases that concern what is read."""

from __future__ import annotations

from pathlib import Path

from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile

CASES = Path(__file__).resolve().parents[2] / "cases"


def test_d06_ids_are_handed_on_as_found_with_their_lines() -> None:
    source = OpenAIBatchFile(str(CASES / "D06" / "input.jsonl")).resolve({})

    found = [(draft.line, draft.custom_id) for draft in source.drafts()]

    assert found == [(1, "r-1"), (2, "r-1"), (3, ""), (4, 7), (5, None), (6, None), (7, " r-1 ")]


def test_d10_a_byte_order_mark_crlf_and_blank_lines_are_not_rows() -> None:
    source = OpenAIBatchFile(str(CASES / "D10" / "input.jsonl")).resolve({})

    drafts = list(source.drafts())

    assert [(draft.line, draft.custom_id) for draft in drafts] == [(1, "r-1"), (3, "r-2")]
    assert [draft.body["messages"][0]["content"] for draft in drafts if draft.body] == ["a", "b"]


def test_d11_each_odd_row_is_cleaned_or_at_fault_and_the_rest_is_served() -> None:
    source = FileSource(str(CASES / "D11" / "rows.jsonl"), key="id").resolve({})
    prompt = RowPrompt("{{ row.prompt }} {{ row.score | default('-') }}").resolve({})

    drafts = {draft.custom_id: draft for draft in source.drafts(prompt)}

    said = {name: d.body and d.body["messages"][0]["content"] for name, d in drafts.items()}
    assert said == {
        "r-1": "a nan",
        "r-2": "b inf",
        "r-3": None,
        "r-4": "nul \0 end -",
        "r-5": "fine -",
    }
    assert drafts["r-3"].fault == (Verdict.BAD_REQUEST, "unencodable_text")
    assert [name for name, draft in drafts.items() if draft.fault] == ["r-3"]
    # What is kept of every row is strict JSON.
    stored = {name: loads(dumps(draft.row)) for name, draft in drafts.items()}
    assert stored["r-1"]["score"] is None
    assert stored["r-3"]["prompt"] == "bad � end"
    assert stored["r-4"]["prompt"] == "nul \0 end"
