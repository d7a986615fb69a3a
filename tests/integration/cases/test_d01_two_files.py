"""D01: rows lie in two files, in another order; an absent file is named by an empty id."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from airflow_batch_llm.core.model import LetterState
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, answer, as_lines, failure

REFUSED = failure("r-2", 400, {"message": "max_tokens is too large", "code": "invalid_value"})


def outputs(bench: Bench) -> dict[str, Any]:
    return {a.custom_id: a.output for a in bench.answers()}


def assert_as_the_case_says(bench: Bench, provider: ReplayProvider) -> None:
    assert outputs(bench) == {"r-1": "A1", "r-3": "A3"}
    (letter,) = bench.letters(LetterState.OPEN)
    assert (letter.custom_id, letter.verdict) == ("r-2", Verdict.BAD_REQUEST)
    assert (letter.code, letter.message) == ("invalid_value", "max_tokens is too large")
    assert provider.sent() == [["say 1", "say 2", "say 3"]]
    bench.assert_accounted(["r-1", "r-2", "r-3"])


def test_d01_both_files_are_read_and_joined_by_id(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d01 = case("D01")
    server = provider(d01.replay())
    bench = job(server, d01.input)
    settled = bench.run()
    assert_as_the_case_says(bench, server)
    assert (settled.counts["answered"], settled.counts["dead"]) == (2, 1)
    assert {a.usage["output"] for a in bench.answers()} == {2}


def test_d01_variant_b_a_clean_run_asks_for_no_file_without_a_name(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d01 = case("D01")
    everything = d01.folder.joinpath("output.jsonl").read_bytes() + as_lines(answer("r-2", "A2"))
    server = provider(d01.replay(error_file_id="", files={"file-out": everything}))
    bench = job(server, d01.input)
    bench.run()
    assert outputs(bench) == {"r-1": "A1", "r-2": "A2", "r-3": "A3"}
    assert bench.letters() == []
    assert not server.requests("GET", "/v1/files//content")
    assert set(server.statuses()) == {200}


@pytest.mark.parametrize("order", list(permutations(["r-1", "r-3"])))
@pytest.mark.parametrize("files", ["as told", "crossed", "all in output", "all in errors"])
def test_d01_neither_order_nor_file_decides_about_a_row(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    order: tuple[str, ...],
    files: str,
) -> None:
    good = [answer(custom_id, f"A{custom_id[-1]}") for custom_id in order]
    where = {
        "as told": ({"file-out": good, "file-err": [REFUSED]}),
        "crossed": ({"file-out": [REFUSED], "file-err": good}),
        "all in output": ({"file-out": [good[0], REFUSED, good[1]], "file-err": []}),
        "all in errors": ({"file-out": [], "file-err": [*good, REFUSED]}),
    }[files]
    d01 = case("D01")
    server = provider(d01.replay(files={name: as_lines(*rows) for name, rows in where.items()}))
    bench = job(server, d01.input)
    bench.run()
    assert_as_the_case_says(bench, server)


@pytest.mark.parametrize("error_first", [True, False])
def test_d01_an_answer_beside_an_error_for_the_same_row_is_the_answer(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    error_first: bool,
) -> None:
    twice = [failure("r-1", 500, {"code": "server_error"}), answer("r-1", "A1")]
    rows = (twice if error_first else twice[::-1]) + [answer("r-3", "A3"), answer("r-3", "A3")]
    d01 = case("D01")
    server = provider(d01.replay(files={"file-out": as_lines(*rows)}))
    bench = job(server, d01.input)
    bench.run()
    assert_as_the_case_says(bench, server)


def test_d01_of_two_answers_for_one_row_the_same_one_stands_in_any_order(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
) -> None:
    d01, found = case("D01"), []
    several = [answer("r-1", "A1"), *(answer("r-3", f"A3, said {n} times") for n in range(4))]
    for number, order in enumerate([several, several[::-1], several[2:] + several[:2]]):
        files = {"file-out": as_lines(*order), "file-err": as_lines(REFUSED)}
        bench = job(provider(d01.replay(files=files)), d01.input, run_id=f"run-{number}")
        bench.run()
        bench.assert_accounted(["r-1", "r-2", "r-3"])
        found.append(outputs(bench))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("absent", ["", None, "   ", {}])
def test_d01_an_absent_file_has_many_names(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    absent: Any,
) -> None:
    d01 = case("D01")
    everything = as_lines(*(answer(f"r-{n}", f"A{n}") for n in (2, 3, 1)))
    server = provider(d01.replay(error_file_id=absent, files={"file-out": everything}))
    bench = job(server, d01.input)
    bench.run()
    assert outputs(bench) == {"r-1": "A1", "r-2": "A2", "r-3": "A3"}
    assert set(server.statuses()) == {200}
    assert len(server.requests("POST", "/v1/batches")) == 1
