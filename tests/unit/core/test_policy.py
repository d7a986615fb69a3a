"""The table of what is done with a row, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.model import Attempt
from airflow_batch_llm.core.policy import RowRetry, attempts_used
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, ROW_FAULTS, Disposition, Verdict
from airflow_batch_llm.exceptions import ConfigurationError


def test_every_verdict_has_a_disposition() -> None:
    assert set(DEFAULT_DISPOSITIONS) == set(Verdict)


@pytest.mark.parametrize(
    ("verdict", "charged", "free", "changeable", "expected"),
    [
        (Verdict.SERVER_ERROR, 0, 0, False, (Disposition.RETRY, False)),
        (Verdict.SERVER_ERROR, 2, 9, False, (Disposition.RETRY, False)),
        (Verdict.SERVER_ERROR, 3, 0, False, (Disposition.DEAD, True)),
        (Verdict.EXPIRED, 3, 0, False, (Disposition.RETRY_FREE, False)),
        (Verdict.EXPIRED, 0, 20, False, (Disposition.DEAD, True)),
        (Verdict.TRUNCATED, 0, 0, True, (Disposition.RETRY_CHANGED, False)),
        (Verdict.TRUNCATED, 0, 0, False, (Disposition.DEAD, False)),
        (Verdict.TRUNCATED, 3, 0, True, (Disposition.DEAD, True)),
        (Verdict.BAD_REQUEST, 0, 0, True, (Disposition.DEAD, False)),
        (Verdict.REFUSED, 0, 0, True, (Disposition.DEAD, False)),
        (Verdict.FILTERED, 0, 0, True, (Disposition.DEAD, False)),
        (Verdict.UNKNOWN, 0, 0, True, (Disposition.DEAD, False)),
        (Verdict.ACCOUNT, 9, 99, True, (Disposition.HALT, False)),
    ],
)
def test_what_is_done_with_a_row(
    verdict: Verdict, charged: int, free: int, changeable: bool, expected: tuple[Disposition, bool]
) -> None:
    assert RowRetry().decide(verdict, charged=charged, free=free, changeable=changeable) == expected


def test_no_setting_sends_a_truncated_row_again_unchanged() -> None:
    with pytest.raises(ConfigurationError, match="truncated"):
        RowRetry(dispositions={"truncated": "retry"})
    policy = RowRetry(max_tokens_factor=1.0)
    assert not policy.changeable(Verdict.TRUNCATED, model="m", params={"max_tokens": 5}, overrides={})


def test_a_truncated_row_gets_more_tokens_each_time() -> None:
    policy = RowRetry()
    model, first = policy.change(Verdict.TRUNCATED, model="m", params={"max_tokens": 100}, overrides={})
    assert (model, first) == ("m", {"max_tokens": 200})
    _, second = policy.change(Verdict.TRUNCATED, model="m", params={"max_tokens": 100}, overrides=first)
    assert second == {"max_tokens": 400}


def test_only_faults_of_the_answer_ask_the_larger_model_and_it_stays_asked() -> None:
    policy = RowRetry(escalate_to="big")
    assert policy.change(Verdict.INVALID_OUTPUT, model="m", params={}, overrides={}) == ("big", {})
    assert policy.change(Verdict.SERVER_ERROR, model="m", params={}, overrides={}) == ("m", {})
    assert policy.change(Verdict.SERVER_ERROR, model="big", params={}, overrides={}) == ("big", {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rounds": -1},
        {"delay": -1},
        {"dispositions": {"nonsense": "retry"}},
        {"dispositions": {"empty": "nonsense"}},
        {"dispositions": {"ok": "dead"}},
        {"dispositions": {"empty": "land"}},
        {"dispositions": {"ok": "retry"}},
        {"dispositions": {"code:rate_limit_exceeded": "land"}},
        {"dispositions": {"code:": "dead"}},
        {"dispositions": {"code:two words": "dead"}},
        {"dispositions": {"rate_limit_exceeded": "dead"}},
        {"dispositions": {3: "dead"}},
        {"dispositions": {"refused": "retry_free"}},
        {"dispositions": {"bad_request": "retry_free"}},
        {"dispositions": {"truncated": "retry_free"}},
        {"dispositions": {"filtered": "retry_changed"}},
        {"dispositions": {"refused": "halt"}},
        {"dispositions": {"code:content_filter": "retry_changed"}},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        RowRetry(**wrong)  # type: ignore[arg-type]


def test_what_is_refused_names_what_there_is() -> None:
    with pytest.raises(ConfigurationError) as told:
        RowRetry(dispositions={"filterd": "dead"})
    assert all(word in str(told.value) for word in (*Verdict, *Disposition, "code:", "'filterd'"))


def test_a_code_goes_before_its_verdict_in_any_case_of_letters() -> None:
    policy = RowRetry(
        escalate_to="big",
        dispositions={"filtered": "retry_changed", "code:Content_Policy_Violation": "dead"},
    )
    assert policy.wanted(Verdict.FILTERED, "content_filter") is Disposition.RETRY_CHANGED
    assert policy.wanted(Verdict.FILTERED, "CONTENT_POLICY_VIOLATION") is Disposition.DEAD
    assert policy.wanted(Verdict.REFUSED, "refusal") is Disposition.DEAD
    assert RowRetry(**policy.serialize()) == policy and hash(RowRetry(**policy.serialize())) == hash(policy)


def test_what_is_changed_about_a_row_by_override_is_its_model_once() -> None:
    policy = RowRetry(escalate_to="big", dispositions={"code:content_filter": "retry_changed"})
    asked = {"params": {"max_tokens": 9}, "overrides": {}}
    assert policy.change(Verdict.FILTERED, "content_filter", model="m", **asked) == ("big", {})
    assert policy.change(Verdict.FILTERED, "other", model="m", **asked) == ("m", {})
    assert policy.changeable(Verdict.FILTERED, "content_filter", model="m", **asked)
    assert not policy.changeable(Verdict.FILTERED, "content_filter", model="big", **asked)


_verdicts = st.sampled_from([verdict for verdict in Verdict if verdict is not Verdict.OK])
_codes = st.sampled_from(["length", "content_filter", "x.y-z", "HTTP_503"])
_overrides = st.dictionaries(
    _verdicts.map(str) | _codes.map(lambda code: f"code:{code}"), st.sampled_from(Disposition).map(str)
)


@given(_overrides, st.none() | st.just("big"), st.lists(st.tuples(_verdicts, _codes), min_size=1))
def test_whatever_is_set_a_row_is_sent_a_bounded_number_of_times(
    overrides: dict[str, str], other: str | None, fates: list[tuple[Verdict, str]]
) -> None:
    try:
        policy = RowRetry(max_rounds=2, max_free_rounds=3, escalate_to=other, dispositions=overrides)
    except ConfigurationError:
        return
    charged = free = sent = 0
    model, changed = "m", {}
    for verdict, code in fates * 8:
        sent += 1
        before = (model, changed)
        asked = {"model": model, "params": {"max_tokens": 9}, "overrides": changed}
        can = policy.changeable(verdict, code, **asked)
        done, _ = policy.decide(verdict, code, charged=charged, free=free, changeable=can)
        assert done is not Disposition.LAND
        if done in (Disposition.DEAD, Disposition.HALT):
            break
        model, changed = policy.change(verdict, code, **asked)
        if verdict is Verdict.TRUNCATED:
            assert (model, changed) != before, "never sent again unchanged"
        if verdict in ROW_FAULTS:
            assert done is not Disposition.RETRY_FREE
        charged += done is not Disposition.RETRY_FREE
        free += done is Disposition.RETRY_FREE
    assert sent <= 1 + 2 + 3


def test_a_clear_and_a_re_drive_give_a_new_allowance() -> None:
    def attempt(revision: int, round_: int, charged: bool = True) -> Attempt:
        return Attempt(round_, "b", Verdict.SERVER_ERROR, "x", 0.0, charged, revision)

    history = (attempt(1, 0), attempt(1, 1), attempt(2, 0), attempt(2, 1, charged=False), attempt(2, 4))
    assert attempts_used(history, revision=2, since_round=0) == (2, 1)
    assert attempts_used(history, revision=2, since_round=4) == (1, 0)
    assert attempts_used(history, revision=3, since_round=0) == (0, 0)
