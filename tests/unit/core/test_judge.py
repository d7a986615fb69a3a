"""The judge's last word: validators and echoed fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Asked, Row
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.schemas import answer_schema


class Label(BaseModel):
    ticket: str | int | float | bool | None
    label: str = "other"


ASKED = Asked("[7,1]", {"id": 7, "sample": 1}, {"lang": "en", "ratio": 0.5, "closed": True, "note": None})
seen: list[tuple[Any, dict[str, Any]]] = []


def agrees(output: Any, row: dict[str, Any]) -> None:
    seen.append((output, row))


def returns_a_reason(output: Any, row: dict[str, Any]) -> str:
    return f"no {output['label']}" + "." * 1000


def raises_a_reason(output: Any, row: dict[str, Any]) -> None:
    raise ValueError("half a pair: \ud83d")


def breaks(output: Any, row: dict[str, Any]) -> None:
    raise KeyError(output["label"])


def says_yes(output: Any, row: dict[str, Any]) -> bool:
    return True


def _row(text: str | None, output: Any = None) -> Row:
    return Row("w", Verdict.OK, text=text, output=output)


def _judge(validate: Any = None, **echo: str) -> Judge:
    return Judge(answer_schema(Label), validate, echo)


def test_a_validator_sees_the_normalised_answer_and_what_was_asked() -> None:
    seen.clear()

    assert _judge(agrees).check(_row('{"ticket": 7}'), ASKED)[0] is Verdict.OK
    assert Judge(validate=agrees).check(_row("words"), ASKED)[0] is Verdict.OK
    assert Judge(validate=agrees).check(_row(None, [0.5]), ASKED)[0] is Verdict.OK

    asked = {"custom_id": "[7,1]", **ASKED.carry, **ASKED.key}
    assert seen == [({"ticket": 7, "label": "other"}, asked), ("words", asked), ([0.5], asked)]


def test_a_validator_is_not_asked_about_what_is_no_answer() -> None:
    seen.clear()

    assert _judge(agrees).check(_row("{}"), ASKED)[1] == "schema_mismatch"
    assert _judge(agrees).check(_row(None), ASKED)[1] == "no_text"
    assert _judge(agrees).check(Row("w", Verdict.EMPTY, "no_content"), ASKED)[0] is Verdict.EMPTY
    assert seen == []


def test_a_reason_rejects_the_answer_and_is_kept_shortly() -> None:
    verdict, code, message = _judge(returns_a_reason).check(_row('{"ticket": 7, "label": "x"}'), ASKED)

    assert (verdict, code) == (Verdict.INVALID_OUTPUT, "rejected")
    assert message.startswith("no x...") and len(message) == 500
    assert _judge(raises_a_reason).check(_row('{"ticket": 7}'), ASKED) == (
        Verdict.INVALID_OUTPUT,
        "rejected",
        "half a pair: ?",
    )


def test_a_validator_that_fails_itself_is_named_with_its_line_and_quotes_nothing() -> None:
    verdict, code, message = _judge(breaks).check(_row('{"ticket": 7, "label": "secret"}'), ASKED)

    line = breaks.__code__.co_firstlineno + 1
    assert (verdict, code) == (Verdict.INVALID_OUTPUT, "validator_failed")
    assert message == f"{__name__}:breaks failed with KeyError in line {line} of test_judge.py"
    said_yes = _judge(says_yes).check(_row('{"ticket": 7}'), ASKED)
    assert said_yes[1:] == (
        "validator_failed",
        f"{__name__}:says_yes returned a bool, neither None nor a reason",
    )


def test_no_answer_is_bought_for_a_validator_that_fails_unless_its_code_is_named() -> None:
    def disposed(code: str, **dispositions: str) -> Disposition:
        policy = RowRetry(dispositions=dispositions)
        return policy.decide(Verdict.INVALID_OUTPUT, code, charged=0, free=0, changeable=True)[0]

    assert disposed("rejected") is Disposition.RETRY
    assert disposed("validator_failed") is Disposition.DEAD
    assert disposed("validator_failed", invalid_output="retry") is Disposition.DEAD
    assert disposed("validator_failed", **{"code:validator_failed": "retry"}) is Disposition.RETRY


@pytest.mark.parametrize(
    ("column", "told", "same"),
    [
        ("id", "7", True),
        ("id", "7.0", True),
        ("id", '"7"', True),
        ("id", '" 7"', False),
        ("id", "8", False),
        ("id", "true", False),
        ("sample", "true", False),
        ("lang", '"en"', True),
        ("lang", '"EN"', False),
        ("ratio", '"0.5"', True),
        ("closed", "true", True),
        ("closed", "1", False),
        ("note", "null", True),
        ("note", '"None"', False),
        ("custom_id", '"[7,1]"', True),
    ],
)
def test_an_echoed_field_must_say_what_the_column_says(column: str, told: str, same: bool) -> None:
    judged = _judge(ticket=column).check(_row(f'{{"ticket": {told}}}'), ASKED)

    if same:
        assert judged[0] is Verdict.OK
    else:
        assert judged == (
            Verdict.INVALID_OUTPUT,
            "echo_mismatch",
            f"'ticket' does not repeat column '{column}'",
        )


def test_an_answer_for_another_row_never_reaches_the_validator() -> None:
    seen.clear()

    assert _judge(agrees, ticket="id").check(_row('{"ticket": 8}'), ASKED)[1] == "echo_mismatch"
    assert seen == []


def test_an_echo_of_a_column_that_is_not_kept_is_an_error_of_the_task() -> None:
    with pytest.raises(
        ConfigurationError, match="echo names column 'nope'.*there are: closed, custom_id, id"
    ):
        _judge(ticket="nope").check(_row('{"ticket": 7}'), ASKED)


def test_the_fingerprint_follows_schema_validator_and_echo() -> None:
    schema = answer_schema(Label)
    judges = [
        Judge(),
        Judge(schema),
        Judge(schema, agrees),
        Judge(schema, breaks),
        Judge(schema, None, {"ticket": "id"}),
        Judge(schema, None, {"ticket": "sample"}),
        Judge(schema, agrees, {"ticket": "id"}),
        Judge(None, agrees),
    ]

    assert len({judge.fingerprint for judge in judges}) == len(judges)
    assert Judge(schema, agrees).fingerprint == Judge(answer_schema(Label), agrees).fingerprint
    assert Judge(schema).fingerprint == schema.fingerprint, "as it was before there were validators"  # type: ignore[union-attr]
    assert all(len(judge.fingerprint) <= 64 for judge in judges)


def test_reading_an_answer_gives_what_checking_it_gave() -> None:
    for schema in (answer_schema(Label), answer_schema(Label.model_json_schema())):
        judge = Judge(schema)
        row = _row('{"ticket": 7}')
        assert judge.check(row)[0] is Verdict.OK
        assert judge.output(row) == schema.parse('{"ticket": 7}')  # type: ignore[union-attr]
    assert Judge().output(_row(None, {"flagged": False})) == {"flagged": False}
