from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.exceptions import ConfigurationError, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile, RowsSource
from airflow_batch_llm.sources.base import RowOptions, RowReader

PROMPT = RowPrompt("{{ row.body }}").resolve({})
ROWS = [{"id": 1, "body": "a", "lang": "de"}, {"id": 2, "body": "b", "lang": None}]


def _drafts(rows: list[dict[str, Any]], key: Any = "id", **options: Any) -> list[Any]:
    return list(RowsSource(rows, key=key).resolve({}).drafts(PROMPT, RowOptions(**options)))


def _told(rows: list[dict[str, Any]], key: Any = "id", **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        _drafts(rows, key, **options)
    assert caught.value.deterministic
    return str(caught.value)


# -- carry -----------------------------------------------------------------------------------------
def test_carried_columns_stand_beside_the_draft() -> None:
    assert [d.carry for d in _drafts(ROWS, carry=("lang", "body"))] == [
        {"lang": "de", "body": "a"},
        {"lang": None, "body": "b"},
    ]
    assert [d.carry for d in _drafts(ROWS)] == [{}, {}]


class Rows(RowReader):
    """Rows as a database gives them."""

    fixed_columns = True

    def __init__(self, *rows: Mapping[str, Any]) -> None:
        super().__init__(["id"], "the query")
        self._rows = rows

    def rows(self) -> Iterable[tuple[int, Mapping[str, Any]]]:  # type: ignore[override]
        return enumerate(self._rows, 1)


def test_carried_values_are_json_types() -> None:
    row = {
        "id": 1,
        "body": "a",
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3),
        "sum": Decimal("1.50"),
        "raw": b"\x00\xff",
        "list": [date(2026, 1, 2)],
        "doc": {"x": (1, 2)},
        "half": "\ud83d",
        "big": 2**80,
    }
    (draft,) = Rows(row).drafts(PROMPT, RowOptions(carry=tuple(row)[2:]))

    assert draft.carry == {
        "day": "2026-01-02",
        "at": "2026-01-02T03:00:00",
        "sum": "1.50",
        "raw": "AP8=",
        "list": ["2026-01-02"],
        "doc": {"x": [1, 2]},
        "half": "\ufffd",
        "big": 2**80,
    }


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(_json)
def test_what_is_carried_survives_being_written_and_read(value: Any) -> None:
    (draft,) = Rows({"id": 1, "body": "a", "x": value}).drafts(PROMPT, RowOptions(carry=("x",)))

    assert loads(dumps(draft.carry)) == draft.carry


def test_an_unknown_column_to_carry_is_told_with_those_there_are() -> None:
    assert "has no column 'langg' to carry; it has: id, body, lang" in _told(ROWS, carry=("langg", "lang"))


def test_rows_of_fixed_columns_are_not_read_to_their_end_for_that() -> None:
    def endless() -> Iterable[Mapping[str, Any]]:
        yield {"id": 1, "body": "a"}
        raise AssertionError("the first row told")

    reader = Rows()
    reader._rows = endless()  # type: ignore[assignment]
    with pytest.raises(SourceError, match="the query, row 1 has no column 'lang' to carry; it has: id, body"):
        list(reader.drafts(PROMPT, RowOptions(carry=("lang",))))


def test_a_column_that_only_some_rows_have_is_null_elsewhere() -> None:
    rows = [{"id": 1, "body": "a"}, {"id": 2, "body": "b", "lang": "de"}]

    assert [d.carry for d in _drafts(rows, carry=("lang",))] == [{"lang": None}, {"lang": "de"}]


def test_a_source_without_rows_says_nothing_about_its_columns() -> None:
    assert _drafts([], carry=("lang",)) == []


def test_a_key_column_is_not_carried_as_well() -> None:
    assert "carry names 'id', which is in the key" in _told(ROWS, carry=("lang", "id"))


@pytest.mark.parametrize(
    "options", [{"carry": ("a", "a")}, {"carry": ("",)}, {"samples": 0}, {"samples": True}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RowOptions(**options)


# -- samples ---------------------------------------------------------------------------------------
def test_every_row_is_asked_as_often_as_there_are_samples() -> None:
    drafts = _drafts(ROWS, samples=2, carry=("lang",))

    assert [(d.line, d.custom_id, d.key, d.sample) for d in drafts] == [
        (1, "[1,1]", {"id": 1, "sample": 1}, 1),
        (1, "[1,2]", {"id": 1, "sample": 2}, 2),
        (2, "[2,1]", {"id": 2, "sample": 1}, 1),
        (2, "[2,2]", {"id": 2, "sample": 2}, 2),
    ]
    assert [d.body for d in drafts] == [d.body for d in _drafts(ROWS) for _ in range(2)]
    assert [d.carry["lang"] for d in drafts] == ["de", "de", None, None]


def test_one_sample_changes_no_id() -> None:
    assert [(d.custom_id, d.key, d.sample) for d in _drafts(ROWS, samples=1)] == [
        ("1", {"id": 1}, 0),
        ("2", {"id": 2}, 0),
    ]


def test_samples_of_a_key_of_several_columns_add_one_part() -> None:
    drafts = _drafts(ROWS, key=["body", "id"], samples=2)

    assert [d.custom_id for d in drafts[:2]] == ['["a",1,1]', '["a",1,2]']


@pytest.mark.parametrize(("key", "carry"), [(["id", "sample"], ()), ("id", ("sample",))])
def test_a_source_that_has_a_column_sample_is_told(key: Any, carry: Any) -> None:
    rows = [{"id": 1, "sample": 7, "body": "a"}]

    assert "has a column 'sample' in its key or in carry" in _told(rows, key, samples=2, carry=carry)
    assert len(_drafts(rows, key, carry=carry)) == 1


@pytest.mark.parametrize("missing", [None, ""])
def test_a_row_without_an_id_stays_one(missing: Any) -> None:
    (draft,) = _drafts([{"id": missing, "body": "a"}], samples=3)

    assert draft.custom_id == missing


# -- redact ----------------------------------------------------------------------------------------
def test_nothing_of_the_row_as_it_was_is_rendered_kept_or_carried() -> None:
    def hide(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "body": "***", "lang": row["lang"] and "xx"}

    (draft, _) = _drafts(ROWS, redact=hide, carry=("lang", "body"))

    assert draft.row == {"id": 1, "body": "***", "lang": "xx"}
    assert draft.body == {"messages": [{"role": "user", "content": "***"}]}
    assert draft.carry == {"lang": "xx", "body": "***"}


def test_what_is_changed_in_place_does_not_reach_the_rows_of_the_dag_file() -> None:
    def hide(row: dict[str, Any]) -> dict[str, Any]:
        row["doc"]["name"] = "***"
        return row

    source = RowsSource([{"id": 1, "body": "a", "doc": {"name": "Ada"}}], key="id")
    before = source.serialize()
    reader = source.resolve({})

    for _ in range(2):
        (draft,) = reader.drafts(PROMPT, RowOptions(redact=hide))
        assert draft.row["doc"] == {"name": "***"}
    assert source.serialize() == before


def _fails(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"secret {row['body']}")


def _forgets(row: dict[str, Any]) -> Any:
    row["body"] = "***"


@pytest.mark.parametrize(
    ("redact", "said"),
    [
        (_fails, r"redact failed with ValueError in line \d+ of test_shaping.py"),
        (_forgets, "redact returned a NoneType, not the row"),
        (lambda row: [row], "redact returned a list, not the row"),
        (lambda row: {**row, 7: "x"}, "redact returned a row with a column whose name is not a string"),
        (lambda row: {**row, "id": "1"}, "redact changed 'id', which names the row"),
        (lambda row: {**row, "id": True}, "redact changed 'id', which names the row"),
        (lambda row: {"body": row["body"]}, "redact changed 'id', which names the row"),
    ],
)
def test_a_redaction_that_goes_wrong_stops_everything_and_quotes_nothing(
    redact: Callable[[Any], Any], said: str
) -> None:
    rows = [{"id": 1, "body": "secret word"}]
    with pytest.raises(SourceError, match=rf"row '1' \(row 1\): {said}.*; nothing was sent") as caught:
        _drafts(rows, redact=redact)

    assert caught.value.deterministic
    shown: BaseException | None = caught.value
    while shown is not None:
        assert "secret" not in str(shown)
        shown = shown.__cause__ or shown.__context__


def test_a_column_that_redaction_makes_can_be_carried_and_one_that_it_drops_cannot() -> None:
    def reshape(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "body": "***", "length": len(row["body"])}

    assert [d.carry for d in _drafts(ROWS, redact=reshape, carry=("length",))] == [{"length": 1}] * 2
    assert "has no column 'lang' to carry; it has: id, body, length" in _told(
        ROWS, redact=reshape, carry=("lang",)
    )


# -- ready-made requests ---------------------------------------------------------------------------
def _ready_made(tmp_path: Path, text: str = "secret word") -> Any:
    line = {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": text}]},
    }
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(line) + "\n")
    return OpenAIBatchFile(str(path)).resolve({})


def test_ready_made_requests_are_redacted_by_their_body(tmp_path: Path) -> None:
    def hide(line: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(line).replace("secret word", "***"))

    (draft,) = _ready_made(tmp_path).drafts(options=RowOptions(redact=hide))

    assert draft.body["messages"][0]["content"] == "***"


@pytest.mark.parametrize("name", ["custom_id", "url", "method"])
def test_what_names_a_ready_made_request_stays(tmp_path: Path, name: str) -> None:
    reading = _ready_made(tmp_path).drafts(options=RowOptions(redact=lambda line: {**line, name: "x"}))

    with pytest.raises(SourceError, match=rf"line 1: redact changed '{name}'"):
        list(reading)


def test_ready_made_requests_can_be_sampled_and_have_nothing_to_carry(tmp_path: Path) -> None:
    source = _ready_made(tmp_path)

    assert [(d.custom_id, d.key) for d in source.drafts(options=RowOptions(samples=2))] == [
        ('["r-1",1]', {"custom_id": "r-1", "sample": 1}),
        ('["r-1",2]', {"custom_id": "r-1", "sample": 2}),
    ]
    with pytest.raises(SourceError, match="ready-made requests, which have no columns to carry .'lang'"):
        list(source.drafts(options=RowOptions(carry=("lang",))))


def test_options_work_on_files_as_well(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,body,lang\n1,a,de\n")
    options = RowOptions(carry=("lang",), samples=2, redact=lambda row: {**row, "body": "***"})

    drafts = list(FileSource(str(path), key="id").resolve({}).drafts(PROMPT, options))

    assert [(d.custom_id, d.carry, d.row["body"]) for d in drafts] == [
        ('["1",1]', {"lang": "de"}, "***"),
        ('["1",2]', {"lang": "de"}, "***"),
    ]


# -- rows that cannot be made into requests --------------------------------------------------------
def test_the_log_names_the_first_rows_that_cannot_be_asked_and_never_what_they_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [{"id": f"r{n}", "body": f"secret {n}"} for n in range(5)]
    prompt = RowPrompt("Sum:\n{{ row.body + 1 }}").resolve({})

    drafts = list(RowsSource(rows, key="id").resolve({}).drafts(prompt, RowOptions()))

    assert [draft.fault and draft.fault[1] for draft in drafts] == ["prompt_failed"] * 5
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == (
        "row 'r0' (row 1): line 2 of the prompt failed with TypeError; "
        "the row is not sent and becomes a dead letter (prompt_failed)"
    )
    assert [line.split()[1] for line in told[:3]] == ["'r0'", "'r1'", "'r2'"]
    assert told[3:] == ["the list of rows: 5 rows in all cannot be made into requests"]
    assert "secret" not in caplog.text
