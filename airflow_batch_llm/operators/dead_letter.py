"""The leaf of a job: writes what failed for good, publishes what is answered, decides the run's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.model import DeadLetter, Job, LetterState
from airflow_batch_llm.core.settle import tally
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.exceptions import AllRowsFailed, ConfigurationError, DeadLetterLimit
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, refuse_if_halted, summary

if TYPE_CHECKING:
    from airflow.sdk import Context

_SHOWN_CODES = 5
_SHOWN_MESSAGE = 200
_COUNTED_MESSAGES = 1000
#: A message that has so many characters in a row from its request quotes it.
_QUOTE = 12


class BatchLLMDeadLetterOperator(BatchLLMJobOperator):
    """Settle the job: results and dead letters first, then the verdict on the run.

    :param max_dead_letter_ratio: share of open dead letters (of all rows) above which the task fails.
        The default 0 makes any dead row red, after everything else has been published.
    :raises AirflowFailException: too many dead letters, no row answered at all, or the job is halted.
    """

    def __init__(self, *, max_dead_letter_ratio: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= max_dead_letter_ratio <= 1:
            raise ConfigurationError(
                f"max_dead_letter_ratio is {max_dead_letter_ratio}; it is a share from 0 to 1"
            )
        self.max_dead_letter_ratio = max_dead_letter_ratio

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Finish whatever is left to do and settle."""
        return await session.engine.advance(Until.SETTLED)

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the counts, or fail with the commonest codes."""
        codes = tally(session.tools, job)
        refuse_if_halted(job)
        rows, answered, dead = job.counts.get("rows", 0), job.counts.get("answered", 0), sum(codes.values())
        told = describe_codes(codes) + _shared_message(session, job)
        if rows and not answered:
            raise AllRowsFailed(f"job {job.job_id}: none of {rows} rows was answered; {told}")
        if rows and dead / rows > self.max_dead_letter_ratio:
            raise DeadLetterLimit(
                f"job {job.job_id}: {dead} of {rows} rows are dead letters "
                f"(allowed: {self.max_dead_letter_ratio:.2%}); {told}"
            )
        return {**summary(job), "dead_letters": dict(codes.most_common(_SHOWN_CODES))}


def describe_codes(codes: Mapping[str, int]) -> str:
    """Say which codes are the commonest."""
    common = Counter(codes).most_common(_SHOWN_CODES)
    return "commonest codes: " + (", ".join(f"{code} ({number})" for code, number in common) or "none")


def _shared_message(session: JobSession, job: Job) -> str:
    """Quote the provider's commonest message, if several rows share it to the letter.

    A message that quotes what was asked is never shown: not one that differs from row to row, and not
    one that repeats a piece of its row's request (the same text may have been sent for several rows).
    """
    seen: Counter[str] = Counter()
    examples: dict[str, DeadLetter] = {}
    for letter in session.ledger.dead_letters(job.job_id, states=[LetterState.OPEN]):
        if letter.message and (letter.message in seen or len(seen) < _COUNTED_MESSAGES):
            seen[letter.message] += 1
            examples.setdefault(letter.message, letter)
    if not seen:
        return ""
    message, number = seen.most_common(1)[0]
    shown = message[:_SHOWN_MESSAGE]
    if number < 2 or _repeats(shown, _request_texts(session, job, examples[message])):
        return ""
    return f"; {number} rows say: {shown}"


def _request_texts(session: JobSession, job: Job, letter: DeadLetter) -> list[str] | None:
    """Return every text of the letter's request, None where it cannot be found."""
    tools = session.tools
    for batch in session.ledger.batches(job.job_id):
        if batch.path == letter.request_path:
            for request in iter_requests(tools.workspace, tools.root, batch):
                if request.wire_id == letter.wire_id:
                    return list(_texts(msgspec.json.decode(request.body)))
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _repeats(message: str, texts: Sequence[str] | None) -> bool:
    """Say whether a piece of the message stands in one of the texts; without texts it may."""
    if texts is None:
        return True
    pieces = [message[i : i + _QUOTE] for i in range(max(len(message) - _QUOTE, 0) + 1)]
    return any(piece in text for text in texts for piece in pieces)
