"""A retry round whose changed request the protocol refuses: told before money is spent, or the row dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_batch_llm.core import stage
from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.model import JobState, LetterState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import ConfigurationError, Refused
from tests.job_bench import CHAT, Bench

TEXTS = {f"t-{n}": f"ticket {n}, {'of no words' if n < 2 else 'as usual'}" for n in range(4)}
EMPTY_ONCE = {"rows": [{"fault": "empty", "match": {"contains": "of no words"}, "times": 1}]}
POLICY = RowRetry(escalate_to="gemini-2.5-pro")
#: The small model can do without reasoning, the large one cannot be told so.
UNREASONED = {"max_tokens": 100, "reasoning_effort": "none"}


def _gemini(bench: Callable[..., Bench], params: dict[str, Any], **values: Any) -> Bench:
    values = {"policy": POLICY, **values}
    job = bench(provider="gemini", template=RequestTemplate(CHAT, "gemini-2.5-flash", params), **values)
    job.server.set_scenario(EMPTY_ONCE)
    return job


def _own_bodies(*unreasoned: str) -> Callable[[], Iterator[Draft]]:
    """Make rows, some of which say by themselves what the large model refuses."""

    def read() -> Iterator[Draft]:
        for line, (custom_id, text) in enumerate(TEXTS.items(), start=1):
            own = {"reasoning_effort": "none"} if custom_id in unreasoned else {}
            body = {"messages": [{"role": "user", "content": text}], **own}
            yield Draft(
                line=line, custom_id=custom_id, body=body, row={"id": custom_id}, key={"id": custom_id}
            )

    return read


def _unsent(job: Bench) -> set[str]:
    events = job.ledger.events(job.key.job_id)
    return {event.reason for event in events if event.action == "not_sent_again"}


def test_a_model_that_the_template_cannot_ask_is_told_before_anything_is_read_or_sent(
    bench: Callable[..., Bench],
) -> None:
    job = _gemini(bench, UNREASONED, texts=TEXTS)

    with pytest.raises(ConfigurationError, match=r"escalate_to='gemini-2.5-pro'.*'reasoning_effort'") as told:
        job.settle()

    assert str(told.value).count("BLLM") == 1
    assert job.reads == 0 and job.batches() == [] and not job.root.exists()
    mended = job.retry(policy=RowRetry(escalate_to="gemini-2.5-flash-lite"))
    assert mended.settle().counts["answered"] == 4


def test_a_job_staged_without_that_check_settles_with_its_rows_dead_as_they_are(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(stage, "_check_escalation", lambda tools, order: None)
        job = _gemini(bench, UNREASONED, texts=TEXTS)
        done = job.settle()

    assert (done.state, done.round) == (JobState.SETTLED, 0)
    assert {letter.custom_id: letter.verdict for letter in job.letters()} == {"t-0": "empty", "t-1": "empty"}
    assert _unsent(job) == {"changed request refused: reasoning_effort (2 rows)"}
    assert len(job.plan_folders()) == 1
    job.assert_accounted(list(TEXTS))


def test_a_row_that_the_other_model_refuses_dies_alone_and_the_others_are_sent_again(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    job = _gemini(bench, {"max_tokens": 100}, drafts=_own_bodies("t-0"))

    done = job.run()

    assert (done.state, done.round) == (JobState.SETTLED, 1)
    again = [batch for batch in job.batches() if batch.round == 1]
    assert [(batch.model, batch.requests) for batch in again] == [("gemini-2.5-pro", 1)]
    (letter,) = job.letters()
    assert (letter.custom_id, letter.verdict, letter.model) == ("t-0", "empty", "gemini-2.5-flash")
    assert _unsent(job) == {"changed request refused: reasoning_effort (1 rows)"}
    assert "of no words" not in caplog.text
    job.assert_accounted(list(TEXTS))


class _Stricter:
    """A backend that refuses rows with one of these texts, as a later version might."""

    def __init__(self, *texts: str) -> None:
        self._texts = [text.encode() for text in texts]
        self._backend: Any = None

    def around(self, backend: Any) -> _Stricter:
        self._backend = backend
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        encode: LineEncoder = self._backend.line_encoder(template)

        def strict(wire_id: str, body: bytes) -> bytes:
            if any(text in body for text in self._texts):
                raise Refused("a text that quotes the row", reason="tone")
            return encode(wire_id, body)

        return strict


@pytest.mark.parametrize(("refused", "sent"), [(["ticket 0"], 1), (["ticket 0", "ticket 1"], 0)])
def test_a_redrive_leaves_letters_open_whose_requests_are_refused_by_now(
    bench: Callable[..., Bench], refused: list[str], sent: int
) -> None:
    job = _gemini(bench, {"max_tokens": 100}, texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.settle()
    later = job.retry(around_backend=_Stricter(*refused).around)

    planned = later.call(lambda engine: engine.redrive(actor="ann", reason="again", mark="m"))

    assert planned == sent
    assert sorted(x.custom_id for x in job.letters(LetterState.OPEN)) == ["t-0", "t-1"][: len(refused)]
    assert [x.custom_id for x in job.letters(LetterState.REDRIVING)] == ["t-1"][:sent]
    assert _unsent(job) == {f"changed request refused: tone ({len(refused)} rows)"}
    done = later.settle()
    assert (done.state, done.counts["answered"]) == (JobState.SETTLED, 2 + sent)
    job.assert_accounted(list(TEXTS))
