"""D13: status 200 and no answer in it, and a tool call that is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.files import iter_outcomes
from airflow_batch_llm.core.model import LetterState, Outcome
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, answer, as_lines, failure

IDS = [f"r-{n}" for n in range(1, 5)]
NOT_ASKED = "not asked again"


def outcomes(bench: Bench, number: int = 0) -> dict[str, Outcome]:
    """custom_id -> outcome of a batch, as the workspace has it."""
    tools = bench.tools()
    return {o.custom_id: o for o in iter_outcomes(tools.workspace, tools.root, bench.batches()[number])}


def said(message: dict[str, Any], finish: str | None = "stop") -> dict[str, Any]:
    """A row of r-1 with this message."""
    row = answer("r-1")
    row["response"]["body"]["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    return row


def test_d13_no_answer_is_taken_for_one_and_a_call_is_one(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d13 = case("D13")
    server = provider(d13.replay())
    bench = job(server, d13.input)
    bench.run()
    letters = {x.custom_id: x for x in bench.letters(LetterState.OPEN)}
    assert {custom_id: (x.verdict, x.code, x.exhausted) for custom_id, x in letters.items()} == {
        "r-1": (Verdict.FILTERED, "content_filter", False),
        "r-2": (Verdict.REFUSED, "refusal", False),
    }
    answers = {a.custom_id: (a.round, a.output) for a in bench.answers()}
    assert answers == {
        "r-3": (0, [{"id": "t1", "type": "function", "function": {"name": "out", "arguments": '{"a":1}'}}]),
        "r-4": (1, "answered"),
    }
    assert server.sent() == [["say 1", "say 2", "say 3", "say 4"], ["say 4"]], "none as it is, the empty once"
    assert bench.batches()[0].counts == {"filtered": 1, "refused": 1, "ok": 1, "empty": 1}
    bench.assert_accounted(IDS)


def test_d13_what_was_said_is_kept_in_the_workspace_and_nowhere_else(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    caplog: pytest.LogCaptureFixture,
) -> None:
    d13 = case("D13")
    words = "I can't help with that."
    bench = job(provider(d13.replay()), d13.input)
    bench.run()
    assert outcomes(bench)["r-2"].text == words
    assert outcomes(bench)["r-3"].text == "" and outcomes(bench)["r-1"].text == ""
    raw = bench.root / "batch" / bench.batches()[0].batch_id / "raw" / "output.jsonl"
    assert words in raw.read_text()
    assert words not in str(bench.letters()) + str(bench.ledger.events(bench.key.job_id)) + caplog.text
    assert "help" not in json.dumps([a.output for a in bench.answers()])


@pytest.mark.parametrize(
    ("row", "verdict", "text"),
    [
        pytest.param(
            said({"content": "So far"}, "content_filter"), "filtered", "So far", id="cut by the filter"
        ),
        pytest.param(said({"content": None}, "SAFETY"), "filtered", "", id="another word for it"),
        pytest.param(
            said({"content": None, "refusal": "No."}, "content_filter"), "filtered", "No.", id="both at once"
        ),
        pytest.param(
            failure("r-1", 400, {"message": "flagged", "code": "content_policy_violation"}),
            "filtered",
            "",
            id="refused as an error",
        ),
        pytest.param(said({"content": "", "refusal": "No."}), "refused", "No.", id="empty text beside it"),
        pytest.param(said({"content": "I will", "refusal": "No."}), "refused", "No.", id="text beside it"),
        pytest.param(
            said({"content": None, "refusal": [{"type": "refusal", "text": "No."}]}),
            "refused",
            "No.",
            id="as parts",
        ),
        pytest.param(said({"content": "No."}, "refusal"), "refused", "No.", id="as a finish reason"),
        pytest.param(
            said({"content": None, "refusal": "n" * 9000}), "refused", "n" * 2000, id="more than is shown"
        ),
    ],
)
def test_d13_filtered_and_refused_rows_die_at_once_with_their_words_kept(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    row: dict[str, Any],
    verdict: str,
    text: str,
) -> None:
    others = [answer(custom_id, "good") for custom_id in IDS[1:]]
    d13 = case("D13")
    server = provider(d13.replay(files={"file-out": as_lines(*others, row)}))
    bench = job(server, d13.input)
    bench.run()
    assert len(server.sent()) == 1
    (letter,) = bench.letters(LetterState.OPEN)
    assert (letter.custom_id, letter.verdict) == ("r-1", verdict)
    assert outcomes(bench)["r-1"].text == text
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    ("row", "answered"),
    [
        pytest.param(said({"content": None}), False, id="null"),
        pytest.param(said({"content": " \n"}), False, id="white space"),
        pytest.param(said({"content": []}), False, id="no parts"),
        pytest.param(said({}), False, id="no content"),
        pytest.param(said({"content": None, "tool_calls": []}, "tool_calls"), False, id="no calls"),
        pytest.param(
            said({"content": "", "tool_calls": [{"id": "t", "function": {"name": "f"}}]}, "tool_calls"),
            True,
            id="a call beside empty text",
        ),
        pytest.param(
            said({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
            True,
            id="the older form of a call",
        ),
        pytest.param(said({"content": [{"type": "text", "text": "a"}]}), True, id="text in parts"),
        pytest.param(said({"content": "a", "refusal": None}, None), True, id="no finish reason"),
    ],
)
def test_d13_only_text_or_a_call_is_an_answer(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    row: dict[str, Any],
    answered: bool,
) -> None:
    others = [answer(custom_id, "good") for custom_id in IDS[1:]]
    d13 = case("D13")
    server = provider(d13.replay(files={"file-out": as_lines(row, *others)}))
    bench = job(server, d13.input)
    bench.run()
    assert server.sent()[1:] == ([] if answered else [["say 1"]])
    assert bench.letters() == []
    bench.assert_accounted(IDS)


def model_of(server: ReplayProvider, upload: int) -> str:
    return str(json.loads(server.uploads[upload].splitlines()[0])["body"]["model"])


def test_d13_rows_that_a_filter_took_can_be_sent_to_another_model_once(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d13 = case("D13")
    server = provider(d13.replay(), replays=1)
    policy = RowRetry(
        escalate_to="m-2", dispositions={"filtered": "retry_changed", "code:no_content": "dead"}
    )
    bench = job(server, d13.input, policy=policy)
    bench.run()
    assert server.sent()[1:] == [["say 1"]] and model_of(server, 1) == "m-2"
    assert bench.open_letters() == {"r-2": "refusal", "r-4": "no_content"}
    bench.assert_accounted(IDS)


@pytest.mark.parametrize("again", ["filtered", "code:content_filter"])
def test_d13_and_if_that_model_is_filtered_too_it_is_the_end(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    again: str,
) -> None:
    def filtered(wire_id: str) -> dict[str, Any]:
        return {**said({"content": None}, "content_filter"), "custom_id": wire_id}

    d13 = case("D13")
    server = provider(row=filtered)
    bench = job(server, d13.input, policy=RowRetry(escalate_to="m-2", dispositions={again: "retry_changed"}))
    bench.run()
    assert [len(texts) for texts in server.sent()] == [4, 4]
    assert bench.open_letters() == dict.fromkeys(IDS, "content_filter")
    bench.assert_accounted(IDS)


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        pytest.param(RowRetry(), [1], id="nothing to change: a ready-made request"),
        pytest.param(RowRetry(escalate_to="m-2"), [1, 1], id="another model"),
        pytest.param(RowRetry(escalate_to="m-2", max_rounds=0), [1], id="no rounds"),
        pytest.param(RowRetry(dispositions={"truncated": "dead"}, escalate_to="m-2"), [1], id="told to die"),
        pytest.param(
            RowRetry(dispositions={"code:length": "retry_free"}),
            [1],
            id="told to go again unchanged, by code",
        ),
    ],
)
def test_d13_a_truncated_answer_is_asked_for_changed_or_not_at_all(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    policy: RowRetry,
    asked: list[int],
) -> None:
    def cut_off(wire_id: str) -> dict[str, Any]:
        return {**said({"content": "So far"}, "length"), "custom_id": wire_id}

    d13 = case("D13")
    server = provider(row=cut_off)
    bench = job(server, d13.input, policy=policy)
    bench.run()
    assert [len(texts) // 4 for texts in server.sent()] == asked
    assert len({model_of(server, n) for n in range(len(asked))}) == len(asked)
    assert bench.open_letters() == dict.fromkeys(IDS, "length")
    bench.assert_accounted(IDS)
