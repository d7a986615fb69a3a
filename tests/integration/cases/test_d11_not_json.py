"""D11: numbers that are not finite, half a surrogate pair, NUL.

The rules (``sources/base.py``, ``sources/openai_file.py``, ``core/jsonl.py``): a prompt sees the row as it
was, so NaN becomes the text ``nan``; NUL is escaped and sent; a prompt with half a surrogate pair is
refused by its id. In ready-made requests a number that is not finite is refused by its id as well. What is
stored of a row is strict JSON: such numbers as null, half a pair as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, strict_json

PROMPT = "{{ row.prompt }} {{ row.score | default('-') }}"


def test_d11_each_odd_row_is_cleaned_or_refused_by_id_and_the_others_are_served(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    server = provider()
    bench = job(server, rows=case("D11").folder / "rows.jsonl", prompt=PROMPT)
    bench.run()
    assert set(server.statuses()) == {200}
    assert server.sent() == [["a nan", "b inf", "nul \0 end -", "fine -"]]
    assert [a.custom_id for a in bench.answers()] == ["r-1", "r-2", "r-4", "r-5"]
    (letter,) = bench.letters()
    assert (letter.custom_id, letter.verdict) == ("r-3", Verdict.BAD_REQUEST)
    assert letter.code == "unencodable_text"
    bench.assert_accounted([f"r-{n}" for n in range(1, 6)])


def test_d11_what_is_kept_of_every_row_is_strict_json(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    bench = job(provider(), rows=case("D11").folder / "rows.jsonl", prompt=PROMPT)
    bench.run()
    files = [path for path in bench.root.rglob("*.jsonl") if path.stat().st_size]
    kinds = {path.name.partition(".")[0].partition("-")[0] for path in files}
    assert kinds >= {"rows", "requests", "outcomes", "refused", "output", "part"}
    for path in files:
        for line in path.read_bytes().splitlines(keepends=True):
            strict_json(line)
    (members,) = bench.root.glob("plan-*/rows.jsonl")
    stored = {row["custom_id"]: row["row"] for row in map(strict_json, members.read_bytes().splitlines())}
    assert stored["r-1"]["score"] is None and stored["r-2"]["score"] is None
    assert stored["r-3"]["prompt"] == "bad \ufffd end"
    assert stored["r-4"]["prompt"] == "nul \0 end"


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        (rb"\ud83d", "unencodable_text"),
        (rb"\ude00", "unencodable_text"),
        (rb"\ude00\ud83d", "unencodable_text"),
        (rb"\ud83d\ud83d\ude00", "unencodable_text"),
        (rb"\ud83d\ude00", None),
        (rb"\u0000", None),
        (rb"\u001f\u007f\ufffe\uffff", None),
    ],
)
def test_d11_text_that_utf8_can_hold_is_sent_and_no_other(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    prompt: bytes,
    fault: str | None,
) -> None:
    rows = b'{"id":"odd","prompt":"x%sy"}\n{"id":"fine","prompt":"fine"}\n' % prompt
    server = provider()
    bench = job(server, rows=write(rows))
    bench.run()
    assert bench.open_letters() == ({} if fault is None else {"odd": fault})
    assert ["fine"] in [[text for text in texts if text == "fine"] for texts in server.sent()]
    bench.assert_accounted(["odd", "fine"])


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (b'"temperature":NaN', "non_finite_number"),
        (b'"temperature":Infinity', "non_finite_number"),
        (b'"temperature":-Infinity', "non_finite_number"),
        (b'"temperature":1e999', "non_finite_number"),
        (b'"logit_bias":{"50256":[1,{"x":NaN}]}', "non_finite_number"),
        (rb'"user":"half \ud83d pair"', "unencodable_text"),
        (rb'"metadata":{"half \ude00 pair":"x"}', "unencodable_text"),
        (rb'"stop":["\ud83d"]', "unencodable_text"),
    ],
)
def test_d11_a_ready_made_request_that_is_no_json_is_refused_by_id(
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    member: bytes,
    code: str,
) -> None:
    line = (
        b'{"custom_id":"%s","method":"POST","url":"/v1/chat/completions","body":{"model":"m-1",'
        b'"messages":[{"role":"user","content":"%s"}]%s}}\n'
    )
    server = provider()
    bench = job(server, write(line % (b"odd", b"odd", b"," + member) + line % (b"fine", b"fine", b"")))
    bench.run()
    assert server.sent() == [["fine"]]
    assert bench.open_letters() == {"odd": code}
    assert [a.custom_id for a in bench.answers()] == ["fine"]
    bench.assert_accounted(["odd", "fine"])
