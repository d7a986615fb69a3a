"""Which columns answers make: typed by what they hold, the same whatever their order and number."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.results.layout import getter, layout_of
from airflow_batch_llm.results.parquet import ParquetResults, drop_rows, results_formats


def answer(output: Any = "text", custom_id: str = "a", **values: Any) -> Answer:
    return Answer(custom_id, f"w-{custom_id}", output, "m-1", {"input": 3, "output": 1}, "stop", 0, **values)


def kinds(*answers: Answer, properties: dict[str, str] | None = None) -> dict[str, str]:
    found = {column.name: column.kind for column in layout_of(answers, properties).columns()}
    names = list(found)
    return {name: found[name] for name in names[1 : names.index("model")]}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "integer"),
        ([1, None], "integer"),
        ([None, None], "text"),
        ([1, 2.5], "number"),
        ([True, False], "boolean"),
        ([True, 1], "text"),
        (["a", 1], "text"),
        ([[1], {"a": 1}], "text"),
        ([2**63], "text"),
        ([2**60, 0.5], "text"),
        ([-(2**63)], "integer"),
    ],
)
def test_a_key_column_has_the_type_that_holds_all_its_values(values: list[Any], kind: str) -> None:
    answers = [answer(key={"id": value}) for value in values]
    assert kinds(*answers)["id"] == kind == kinds(*reversed(answers))["id"]


@pytest.mark.parametrize(
    ("expected", "values", "kind"),
    [
        ("number", [1, 2], "number"),
        ("integer", [], "integer"),
        ("text", [1, 2], "text"),
        ("integer", [1, "many"], "text"),
        ("boolean", [None, True], "boolean"),
        ("date", ["2026-01-01"], "text"),
        ("json", [{"a": 1}], "text"),
    ],
)
def test_the_schema_decides_a_property_as_long_as_it_can_hold_the_values(
    expected: str, values: list[Any], kind: str
) -> None:
    answers = [answer({"n": value}) for value in values]
    assert kinds(*answers, properties={"n": expected}) == {"n": kind}


def test_an_answer_that_is_no_object_stands_beside_the_properties() -> None:
    answers = [answer({"label": "bug"}), answer("only words")]
    columns = layout_of(answers, {"label": "text"}).columns()
    output = next(column for column in columns if column.name == "output")
    assert [getter(output)(one) for one in answers] == [None, "only words"]


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        ([[0.1, 2], [3.0]], "vector"),
        ([[0.1], "text"], "text"),
        ([[]], "text"),
        ([[True, 1.0]], "text"),
        ([{"flagged": True}], "text"),
    ],
)
def test_embeddings_are_vectors_and_what_is_no_text_is_json(outputs: list[Any], kind: str) -> None:
    answers = [answer(output) for output in outputs]
    assert kinds(*answers) == {"output": kind}
    columns = layout_of(answers, None).columns()
    values = [getter(next(c for c in columns if c.name == "output"))(one) for one in answers]
    assert all(isinstance(value, list if kind == "vector" else str) for value in values)


def test_of_columns_with_one_name_the_later_ones_get_a_prefix() -> None:
    one = answer({"id": 1, "model": 2, "team": 3}, key={"id": 7, "model": "x"}, carry={"team": "t"})
    assert list(kinds(one, properties=dict.fromkeys(("id", "model", "team"), "integer"))) == [
        "id", "key_model", "team", "output_id", "output_model", "output_team"
    ]  # fmt: skip
    assert list(kinds(answer(key={"output": 1}))) == ["key_output", "output"]


# -- files -----------------------------------------------------------------------------------------
def write(form: ParquetResults, path: Path, answers: list[Answer]) -> None:
    writer = form.open(path)
    for one in answers:
        writer.write(one)
    writer.close()


def test_parts_have_the_same_columns_whatever_each_holds(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    parts = [[answer(key={"id": None})], [answer(key={"id": 5}, carry={"x": 1})], []]
    form = ParquetResults().fitted(one for part in parts for one in part)
    for number, part in enumerate(parts):
        write(form, tmp_path / f"{number}.parquet", part)
    schemas = {str(pq.read_schema(path)) for path in tmp_path.iterdir()}
    assert len(schemas) == 1 and "id: int64" in schemas.pop()


def test_row_groups_are_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write(ParquetResults().fitted([]), tmp_path / "many", [answer(custom_id=str(n)) for n in range(12_000)])
    write(ParquetResults().fitted([]), tmp_path / "large", [answer("x" * 5_000_000) for _ in range(8)])
    many, large = pq.ParquetFile(tmp_path / "many"), pq.ParquetFile(tmp_path / "large")
    assert [many.metadata.row_group(n).num_rows for n in range(3)] == [5000, 5000, 2000]
    assert [large.metadata.row_group(n).num_rows for n in range(2)] == [4, 4]


def test_any_text_comes_back_as_it_was(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    texts = ["", "\x00\x1f\u2028", "שלום 🦊", '{"a": "{{ x }}"}', "x" * 1_000_000]
    answers = [answer(text, custom_id=text or "-") for text in texts]
    write(ParquetResults().fitted(answers), tmp_path / "p", answers)
    assert pq.read_table(tmp_path / "p").column("output").to_pylist() == texts


def test_rows_are_dropped_by_their_ids_and_the_columns_stay(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    answers = [answer(custom_id=str(n), key={"id": n}) for n in range(3)]
    write(ParquetResults().fitted(answers), tmp_path / "before", answers)
    drop_rows(tmp_path / "before", tmp_path / "after", ["1", "7"])
    assert pq.read_table(tmp_path / "after").column("id").to_pylist() == [0, 2]
    drop_rows(tmp_path / "after", tmp_path / "none", ["0", "2"])
    assert pq.read_schema(tmp_path / "none") == pq.read_schema(tmp_path / "before")


def test_a_form_that_cannot_be_written_here_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigurationError, match="names 'csv'"):
        results_formats(("csv",), None)
    assert results_formats(("jsonl",), None) == ()

    real = builtins.__import__

    def without_pyarrow(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ConfigurationError, match="needs pyarrow"):
        results_formats(("jsonl", "parquet"), None)
