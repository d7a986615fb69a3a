from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.jsonl import dumps, loads
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import PromptError, SourceError
from airflow_batch_llm.prompts import RowPrompt
from airflow_batch_llm.sources import FileSource, OpenAIBatchFile
from airflow_batch_llm.sources.storable import storable_row

PROMPT = RowPrompt("{{ row.body }}").resolve({})


def _texts(path: Path, **arguments: Any) -> list[tuple[int, Any, Any]]:
    source = FileSource(str(path), key="id", **arguments).resolve({})
    return [(d.line, d.custom_id, d.body and d.body["messages"][0]["content"]) for d in source.drafts(PROMPT)]


def _file(tmp_path: Path, data: bytes, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_only_the_newline_byte_ends_a_json_line(tmp_path: Path) -> None:
    odd = "a\u2028b\u0085c\fd"
    path = _file(tmp_path, f'{{"id": "1", "body": "{odd}"}}\n'.encode().replace(b"\x0c", b"\\f"))

    assert _texts(path) == [(1, "1", odd)]


def test_broken_json_lines_are_named_with_file_and_line(tmp_path: Path) -> None:
    path = _file(tmp_path, b'{"id":"1","body":"a"}\n{"id":"2","bo\n\n[1]\n{"id":"3","body":"\xff"}\n')

    with pytest.raises(SourceError) as caught:
        _texts(path)

    assert str(path) in str(caught.value)
    assert "line 2 is not JSON; line 4 is not an object; line 5 is not JSON" in str(caught.value)


def test_at_most_twenty_broken_lines_are_named(tmp_path: Path) -> None:
    path = _file(tmp_path, b"x\n" * 50)

    with pytest.raises(SourceError) as caught:
        _texts(path)

    assert "line 20 " in str(caught.value)
    assert "line 21 " not in str(caught.value)
    assert str(caught.value).endswith("; and more")


def test_a_line_nested_too_deeply_is_broken_not_a_crash(tmp_path: Path) -> None:
    deep = [b"[" * depth + b"]" * depth for depth in (199, 201, 900, 100_000)]
    lines = [b'{"id":"%d","body":"a","x":%s}' % (i, value) for i, value in enumerate(deep, 1)]

    with pytest.raises(SourceError) as caught:
        _texts(_file(tmp_path, b"\n".join(lines)))

    told = str(caught.value)
    assert "line 1 " not in told
    assert all(f"line {line} is nested too deeply" in told for line in (2, 3, 4))


def test_many_brackets_side_by_side_are_not_deep(tmp_path: Path) -> None:
    path = _file(tmp_path, dumps({"id": "1", "body": "a", "x": [[]] * 500}))

    assert len(_texts(path)) == 1


def test_a_gzipped_file_is_read_like_the_plain_one(tmp_path: Path) -> None:
    plain = b'{"id":"1","body":"a"}\n{"id":"2","body":"b"}'

    assert _texts(_file(tmp_path, gzip.compress(plain), "rows.ndjson.gz")) == _texts(_file(tmp_path, plain))


def test_a_gzipped_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(b'{"id":"1","body":"a"}\n' * 1000)

    with pytest.raises(SourceError, match="not a whole gzip file"):
        _texts(_file(tmp_path, data[:-20], "rows.jsonl.gz"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no file .*nowhere\.jsonl"):
        _texts(tmp_path / "nowhere.jsonl")


def test_an_unknown_suffix_needs_a_format(tmp_path: Path) -> None:
    path = _file(tmp_path, b'{"id":"1","body":"a"}\n', "rows.txt")

    with pytest.raises(SourceError, match="cannot tell the format"):
        _texts(path)
    assert _texts(path, format="jsonl") == [(1, "1", "a")]


def test_a_source_can_be_read_again(tmp_path: Path) -> None:
    source = FileSource(str(_file(tmp_path, b'{"id":"1","body":"a"}\n')), key="id").resolve({})

    assert list(source.drafts(PROMPT)) == list(source.drafts(PROMPT))


def test_an_unknown_key_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    path = _file(tmp_path, b'{"ident":"1","body":"a"}\n')

    with pytest.raises(SourceError, match=r"no key column 'id'; it has: ident, body"):
        _texts(path)


def test_a_null_key_gives_no_id_and_keeps_its_line(tmp_path: Path) -> None:
    path = _file(tmp_path, b'{"id":"1","body":"a"}\n{"id":null,"body":"b"}\n{"body":"c"}\n')

    assert [(line, custom_id) for line, custom_id, _ in _texts(path)] == [(1, "1"), (2, None), (3, None)]


def test_a_column_the_prompt_names_and_a_row_lacks_stops_before_any_money(tmp_path: Path) -> None:
    path = _file(tmp_path, b'{"id":"1","body":"a"}\n{"id":"2","text":"b"}\n')

    with pytest.raises(PromptError, match=r"row '2' \(line 2\): .* column 'body'.*; it has: id, text"):
        _texts(path)


def test_rows_without_a_prompt_are_refused(tmp_path: Path) -> None:
    source = FileSource(str(_file(tmp_path, b"{}")), key="id").resolve({})

    with pytest.raises(SourceError, match="needs a prompt"):
        list(source.drafts(None))


def test_csv_keeps_quotes_newlines_nul_and_long_fields(tmp_path: Path) -> None:
    long = "x" * 300_000
    data = f'\ufeffid,body\r\n1,"a ""b"",\r\nc\0"\r\n\r\n2,{long}\r\n'.encode()

    assert _texts(_file(tmp_path, data, "rows.csv")) == [(2, "1", 'a "b",\r\nc\0'), (5, "2", long)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,body\n1,a\n2\n3,c,d\n", "line 3 has 1 fields instead of 2; line 4 has 3 fields instead of 2"),
        (b'id,body\n1,a\n2,"never closed\n3,c\n', "begins on line 3 is not CSV"),
        (b"id,body\n1,\xff\n", "line 2 is not UTF-8"),
        (b"id,body,body\n1,a,b\n", "the header names 'body' more than once"),
    ],
)
def test_a_broken_csv_file_is_refused_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        _texts(_file(tmp_path, data, "rows.csv"))


def _request(**changes: Any) -> bytes:
    line = {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m-1", "messages": [{"role": "user", "content": "a"}]},
    }
    return json.dumps(line | changes).encode() + b"\n"


def test_ready_made_requests_keep_their_bodies_and_name_endpoint_and_model(tmp_path: Path) -> None:
    body = {"model": "m-2", "messages": [], "seed": 12345678901234567890123}
    source = OpenAIBatchFile(str(_file(tmp_path, _request() + _request(custom_id="r-2", body=body)))).resolve(
        {}
    )

    drafts = list(source.drafts())

    assert (source.native, source.endpoint) == (True, "/v1/chat/completions")
    assert [draft.model for draft in drafts] == ["m-1", "m-2"]
    assert drafts[1].body == body
    assert drafts[1].key == {"custom_id": "r-2"}


def test_lines_that_are_no_requests_are_named_together(tmp_path: Path) -> None:
    data = (
        _request()
        + _request(url="/v1/embeddings")
        + _request(method="GET")
        + _request(body=None)
        + _request(body={"messages": []})
        + _request(url=None)
    )

    with pytest.raises(SourceError) as caught:
        list(OpenAIBatchFile(str(_file(tmp_path, data))).resolve({}).drafts())

    told = str(caught.value)
    assert "line 2: its url is not that of the first line" in told
    assert "line 3: its method is not POST" in told
    assert "line 4: it has no body" in told
    assert "line 5: its body names no model" in told
    assert "line 6: it has no url" in told
    assert "line 1:" not in told


def test_a_body_that_strict_json_cannot_hold_is_at_fault_alone(tmp_path: Path) -> None:
    huge = b'{"model":"m","n":1e999}'
    data = (
        _request(custom_id="nan", body={"model": "m", "temperature": float("nan")})
        + _request(custom_id="half", body={"model": "m", "messages": [{"content": "\ud83d"}]})
        + b'{"custom_id":"huge","method":"POST","url":"/v1/chat/completions","body":%s}\n' % huge
        + _request(custom_id="fine")
    )

    drafts = list(OpenAIBatchFile(str(_file(tmp_path, data))).resolve({}).drafts())

    assert {draft.custom_id: draft.fault for draft in drafts} == {
        "nan": (Verdict.BAD_REQUEST, "non_finite_number"),
        "half": (Verdict.BAD_REQUEST, "unencodable_text"),
        "huge": (Verdict.BAD_REQUEST, "non_finite_number"),
        "fine": None,
    }
    assert [draft.body is None for draft in drafts] == [True, True, True, False]


def test_an_empty_batch_file_has_no_requests_and_no_endpoint(tmp_path: Path) -> None:
    source = OpenAIBatchFile(str(_file(tmp_path, b"\n\n"))).resolve({})

    assert (list(source.drafts()), source.endpoint) == ([], None)


_any_text = st.text(st.characters(codec=None, exclude_categories=()))
_any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _any_text,
    lambda inner: st.lists(inner) | st.dictionaries(_any_text, inner),
    max_leaves=10,
)


@given(st.dictionaries(_any_text, _any_json))
def test_every_row_can_be_stored_as_strict_json(row: dict[str, Any]) -> None:
    loads(dumps(storable_row(row)))


@given(st.lists(st.dictionaries(_any_text, _any_json), max_size=5))
def test_every_row_that_json_can_write_is_a_draft_with_a_body_or_a_fault(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    rows = [row | {"id": str(i), "body": row} for i, row in enumerate(rows)]
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    drafts = list(FileSource(str(path), key="id").resolve({}).drafts(PROMPT))

    assert [draft.custom_id for draft in drafts] == [row["id"] for row in rows]
    for draft in drafts:
        assert (draft.body is None) == (draft.fault is not None)
        loads(dumps([draft.row, draft.body]))
