"""The table of what is done with a row, case by case."""

from __future__ import annotations

import pytest

from airflow_batch_llm.core.model import Attempt
from airflow_batch_llm.core.policy import RowRetry, attempts_used
from airflow_batch_llm.core.verdicts import DEFAULT_DISPOSITIONS, Disposition, Verdict
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
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        RowRetry(**wrong)  # type: ignore[arg-type]


def test_a_clear_and_a_re_drive_give_a_new_allowance() -> None:
    def attempt(revision: int, round_: int, charged: bool = True) -> Attempt:
        return Attempt(round_, "b", Verdict.SERVER_ERROR, "x", 0.0, charged, revision)

    history = (attempt(1, 0), attempt(1, 1), attempt(2, 0), attempt(2, 1, charged=False), attempt(2, 4))
    assert attempts_used(history, revision=2, since_round=0) == (2, 1)
    assert attempts_used(history, revision=2, since_round=4) == (1, 0)
    assert attempts_used(history, revision=3, since_round=0) == (0, 0)
