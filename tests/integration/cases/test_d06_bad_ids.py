"""D06: repeated, empty, numeric, null and missing ids in the input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.exceptions import CustomIdError
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider

REPEATS = "repeats the custom_id of line 1"
MISSING = "the custom_id is missing or null"


def request(custom_id: Any, text: str = "x") -> bytes:
    """A line of a ready-made file; ``...`` leaves the id out."""
    body = {"model": "m-1", "messages": [{"role": "user", "content": text}]}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    if custom_id is ...:
        del line["custom_id"]
    return json.dumps(line).encode() + b"\n"


def test_d06_every_bad_line_is_named_with_its_cause_before_any_call(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    server = provider()
    with pytest.raises(CustomIdError) as told:
        job(server, case("D06").input).run()
    assert server.calls == []
    said = str(told.value)
    for line, cause in {
        2: REPEATS,
        3: "the custom_id is empty",
        4: "the custom_id is a int, not a string",
        5: MISSING,
        6: MISSING,
    }.items():
        assert f"line {line}: {cause}" in said
    assert "line 1:" not in said and "line 7:" not in said


def test_d06_ids_are_not_trimmed_into_one(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
) -> None:
    lines = case("D06").lines("input.jsonl")
    server = provider()
    bench = job(server, write(b"\n".join([lines[0], lines[6]]) + b"\n"))
    bench.run()
    assert [a.custom_id for a in bench.answers()] == ["r-1", " r-1 "]
    assert len({a.wire_id for a in bench.answers()}) == 2
    bench.assert_accounted(["r-1", " r-1 "])


@pytest.mark.parametrize(
    "ids",
    [
        ("r-1", "R-1", "r-1 ", "\tr-1"),
        ("caf\u00e9", "cafe\u0301"),  # composed and decomposed
        ("1", "01", "1.0", "+1"),
        ("a\u2028b", "a\u0085b", "a b"),
        ("x" * 64, "x" * 65, "x" * 2000),
        ("null", "None", "0", "false"),
    ],
)
def test_d06_ids_that_look_alike_stay_apart_and_come_back_byte_for_byte(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    ids: tuple[str, ...],
) -> None:
    server = provider()
    bench = job(server, write(b"".join(map(request, ids))))
    bench.run()
    assert [a.custom_id for a in bench.answers()] == list(ids)
    assert all(len(a.wire_id) <= 64 and a.wire_id.isascii() for a in bench.answers())
    bench.assert_accounted(ids)


@pytest.mark.parametrize(
    ("custom_id", "cause"),
    [
        (..., MISSING),
        (None, MISSING),
        ("", "empty"),
        (0, "a int"),
        (7.5, "a float"),
        (True, "a bool"),
        ([], "a list"),
        ({"id": "r-2"}, "a dict"),
        ("nul\x00", "NUL"),
        ("\ud83d", "half a surrogate pair"),
    ],
)
def test_d06_one_bad_id_refuses_the_whole_file_by_its_line(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    custom_id: Any,
    cause: str,
) -> None:
    server = provider()
    path = write(request("good-1") + request("good-2") + request(custom_id) + request("good-3"))
    with pytest.raises(CustomIdError, match=f"line 3: .*{cause}"):
        job(server, path).run()
    assert server.calls == []


def test_d06_a_repeat_far_away_is_found_and_names_both_lines(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    many = b"".join(request(f"r-{n}") for n in range(1, 2501))
    server = provider()
    with pytest.raises(CustomIdError, match="line 2501: repeats the custom_id of line 3"):
        job(server, write(many + request("r-3"))).run()
    assert server.calls == []


def test_d06_a_long_list_of_faults_is_cut_and_counted(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    server = provider()
    with pytest.raises(CustomIdError, match="30 bad custom_ids.*and 10 more") as told:
        job(server, write(request("r-1") * 31)).run()
    assert "line 2:" in str(told.value)
    assert server.calls == []


def test_d06_rows_of_a_table_are_held_to_the_same(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    rows = [{"id": i, "prompt": "x"} for i in ("a", "a", None, "")]
    server = provider()
    with pytest.raises(CustomIdError) as told:
        job(server, rows=write(b"".join(json.dumps(r).encode() + b"\n" for r in rows))).run()
    for line, cause in {2: REPEATS, 3: MISSING, 4: "empty"}.items():
        assert f"line {line}: " in str(told.value) and cause in str(told.value)
    assert server.calls == []
