"""D12: at most 3 requests and 700 bytes a batch, bytes counted as they are sent.

The case names no model. With the one-letter model of this test three of its rows are 699 characters
long and 879 bytes: who counts characters puts three into a file and is refused with 413.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider

LIMITS = {"max_requests": 3, "max_bytes": 700}


def assert_no_refusal(server: ReplayProvider) -> None:
    """Neither a 413 nor a 400 was ever seen, nor a batch beyond the limits."""
    assert set(server.statuses()) == {200}
    assert all(len(data) <= 700 and data.count(b"\n") <= 3 for data in server.uploads)


def rows_of(prompts: dict[str, str]) -> bytes:
    lines = (json.dumps({"id": i, "prompt": p}, ensure_ascii=False) for i, p in prompts.items())
    return "".join(f"{line}\n" for line in lines).encode()


def test_d12_bytes_are_counted_encoded_and_only_the_row_that_never_fits_dies(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    server = provider(**LIMITS)
    bench = job(server, rows=case("D12").folder / "rows.jsonl", model="m", options=LIMITS)
    bench.run()
    assert_no_refusal(server)
    lines = b"".join(server.uploads).splitlines(keepends=True)[:3]
    assert sum(len(line.decode()) for line in lines) <= 700 < sum(map(len, lines))
    assert [data.count(b"\n") for data in server.uploads] == [2, 2, 2]
    (letter,) = bench.letters()
    assert (letter.custom_id, letter.verdict) == ("r-6", Verdict.TOO_LARGE)
    assert [a.custom_id for a in bench.answers()] == ["r-1", "r-2", "r-3", "r-4", "r-5", "r-7"]
    assert [b.upload_bytes for b in bench.batches()] == [len(data) for data in server.uploads]
    bench.assert_accounted([f"r-{n}" for n in range(1, 8)])


@pytest.mark.parametrize(
    "letter",
    ["x", "\u00e9", "\u20ac", "\U0001f600", "e\u0301", '"', "\\", "\n", "\x01", "\u2028", "</"],
    ids=ascii,
)
def test_d12_no_text_makes_a_file_larger_than_was_counted(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    letter: str,
) -> None:
    prompts = {f"{size}-{n}": f"{n}{letter * size}" for size in (1, 20, 61, 130) for n in range(4)}
    prompts["big"] = letter * 900
    server = provider(**LIMITS)
    bench = job(server, rows=write(rows_of(prompts)), options=LIMITS)
    bench.run()
    assert_no_refusal(server)
    assert "big" in bench.open_letters()
    assert set(bench.open_letters().values()) == {"request_over_limit"}
    bench.assert_accounted(list(prompts))


def test_d12_a_row_of_exactly_the_limit_is_sent_and_one_byte_more_is_not(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    server = provider(**LIMITS)
    probe = job(server, rows=write(rows_of({"probe": ""})), options=LIMITS, task_id="probe")
    probe.run()
    room = 700 - len(server.uploads[0])
    prompts = {"fits": "x" * room, "not": "x" * (room + 1), "fits too": "\u00e9" * (room // 2)}
    bench = job(server, rows=write(rows_of(prompts)), options=LIMITS)
    bench.run()
    assert_no_refusal(server)
    assert len(server.uploads[1]) == 700
    assert bench.open_letters() == {"not": "request_over_limit"}
    assert {a.custom_id for a in bench.answers()} == {"fits", "fits too"}


def test_d12_short_rows_are_cut_by_their_number(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    prompts = {f"r-{n}": "x" for n in range(7)}
    server = provider(**LIMITS)
    bench = job(server, rows=write(rows_of(prompts)), options=LIMITS)
    bench.run()
    assert_no_refusal(server)
    assert [data.count(b"\n") for data in server.uploads] == [3, 3, 1]
    bench.assert_accounted(list(prompts))


@pytest.mark.parametrize("last", [False, True])
def test_d12_a_row_that_never_fits_stops_no_other_wherever_it_stands(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    last: bool,
) -> None:
    good: dict[str, str] = {f"r-{n}": "x" for n in range(4)}
    prompts = {**good, "big": "x" * 900} if last else {"big": "x" * 900, **good}
    server = provider(**LIMITS)
    bench = job(server, rows=write(rows_of(prompts)), options=LIMITS)
    bench.run()
    assert_no_refusal(server)
    assert bench.open_letters() == {"big": "request_over_limit"}
    assert {a.custom_id for a in bench.answers()} == set(good)
    bench.assert_accounted(list(prompts))


def test_d12_only_rows_that_never_fit_make_no_call_at_all(
    provider: Callable[..., ReplayProvider], job: Callable[..., Bench], write: Callable[[bytes], Path]
) -> None:
    server = provider(**LIMITS)
    bench = job(server, rows=write(rows_of({"a": "x" * 900, "b": "y" * 900})), options=LIMITS)
    bench.run()
    assert server.calls == []
    assert bench.open_letters() == {"a": "request_over_limit", "b": "request_over_limit"}


@pytest.mark.parametrize(("data", "refusal"), [(b"[%s]\n" % (b"1," * 350 + b"1"), 413)])
def test_d12_the_provider_of_these_tests_refuses_what_it_should(
    provider: Callable[..., ReplayProvider], data: bytes, refusal: int
) -> None:
    server = provider(**LIMITS)

    def upload(data: bytes) -> httpx.Response:
        files: dict[str, Any] = {"file": ("x.jsonl", data)}
        return httpx.post(f"{server.url}/files", files=files, data={"purpose": "batch"})

    assert upload(data).status_code == refusal
    order = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    order["input_file_id"] = upload(b"{}\n" * 4).json()["id"]
    assert httpx.post(f"{server.url}/batches", json=order).status_code == 400
