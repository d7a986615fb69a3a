"""The leaf of a job: writes what failed for good, publishes what is answered, decides the run's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.by_hand import acceptance_of, accepted_halt, settle_accepted, what_runs
from airflow_batch_llm.core.files import results_path
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.core.settle import tally
from airflow_batch_llm.core.spec import Progress, Until
from airflow_batch_llm.exceptions import AllRowsFailed, DeadLetterLimit
from airflow_batch_llm.operators.arguments import number
from airflow_batch_llm.operators.asset_events import tell_outlets
from airflow_batch_llm.operators.base import BatchLLMJobOperator, JobSession, summary
from airflow_batch_llm.operators.halted import refuse_halted
from airflow_batch_llm.operators.shared_message import shared_message

if TYPE_CHECKING:
    from airflow.sdk import Context

_SHOWN_CODES = 5


class BatchLLMDeadLetterOperator(BatchLLMJobOperator):
    """Settle the job: results and dead letters first, then the verdict on the run.

    :param max_dead_letter_ratio: share of open dead letters (of all rows) above which the task fails.
        The default 0 makes any dead row red, after everything else has been published. A person who
        accepts the job (``batch-llm accept``) makes it green all the same. Templated.
    :raises AirflowFailException: too many dead letters, no row answered at all, or the job is halted.
    """

    template_fields: Sequence[str] = (*BatchLLMJobOperator.template_fields, "max_dead_letter_ratio")

    def __init__(self, *, max_dead_letter_ratio: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_dead_letter_ratio = max_dead_letter_ratio
        self._check_limit(rendered=False)

    def check_rendered(self, context: Context) -> None:
        """See that arguments which are known only now are what they may be."""
        super().check_rendered(context)
        self._check_limit(rendered=True)

    def _check_limit(self, *, rendered: bool) -> None:
        self.max_dead_letter_ratio = number(
            self.task_id,
            "max_dead_letter_ratio",
            self.max_dead_letter_ratio,
            least=0,
            most=1,
            whole=False,
            rendered=rendered,
        )

    async def work(self, session: JobSession, context: Context) -> Progress:
        """Finish whatever is left to do and settle; close a halted job that a person has accepted."""
        while True:
            progress = await session.engine.advance(Until.SETTLED)
            accepted = accepted_halt(progress.job)
            if not progress.done or accepted is None:
                return progress
            settled = settle_accepted(session.tools, progress.job, accepted)
            if settled is not None:
                return Progress(settled, True)
            running = what_runs(session.tools, progress.job)
            if running is not None:
                return running

    def finish(self, session: JobSession, job: Job, context: Context) -> Any:
        """Return the counts, or fail with the commonest codes."""
        codes = tally(session.tools, job)
        refuse_halted(session.ledger, job)
        self._tell(session, job, codes)
        rows, answered, dead = _count(job, "rows"), _count(job, "answered"), sum(codes.values())
        accepted = acceptance_of(job)
        if accepted is not None and dead <= accepted.letters:
            self.log.info("%d dead letters are accepted by %s: %s", dead, accepted.actor, accepted.reason)
            return self._told(session, job, codes, context)
        if rows and not answered:
            told = _what_they_say(session, job, codes)
            raise AllRowsFailed(f"job {job.job_id}: none of {rows} rows was answered; {told}")
        if rows and dead / rows > self.max_dead_letter_ratio:
            told = _what_they_say(session, job, codes)
            raise DeadLetterLimit(
                f"job {job.job_id}: {dead} of {rows} rows are dead letters "
                f"(allowed: {self.max_dead_letter_ratio:.2%}); {told}"
            )
        return self._told(session, job, codes, context)

    def _told(self, session: JobSession, job: Job, codes: Counter[str], context: Context) -> dict[str, Any]:
        """Return the task's XCom; its outlets' events say the same."""
        told = {
            **summary(job),
            "dead_letters": dict(codes.most_common(_SHOWN_CODES)),
            "results": session.tools.workspace.url(results_path(session.tools.root, job.revision)),
        }
        tell_outlets(context, self.outlets, told)
        return told

    def _tell(self, session: JobSession, job: Job, codes: Counter[str]) -> None:
        tools = session.tools
        dead = sum(codes.values())
        self.log.info(
            "job %s revision %d: %d rows, %d answered, %d dead letters (%s), %d withdrawn, %s landed",
            job.job_id,
            job.revision,
            _count(job, "rows"),
            _count(job, "answered"),
            dead,
            describe_codes(codes),
            _count(job, "withdrawn"),
            job.counts.get("landed", "none (no sink)"),
        )
        self.log.info("results: %s", tools.workspace.url(results_path(tools.root, job.revision)))
        if dead:
            self.log.info("%d dead letters are open; %s", dead, redrive_hint(job))
        if dead and _count(job, "refused"):
            self.log.info(
                "%d rows were never sent, and a re-drive leaves them alone: mend the rows or the prompt, "
                "then clear the job so that its source is read again",
                _count(job, "refused"),
            )


def describe_codes(codes: Mapping[str, int]) -> str:
    """Say which codes are the commonest."""
    common = Counter(codes).most_common(_SHOWN_CODES)
    return "commonest codes: " + (", ".join(f"{code} ({number})" for code, number in common) or "none")


def _what_they_say(session: JobSession, job: Job, codes: Mapping[str, int]) -> str:
    shared = shared_message(session.tools, job)
    said = f"; {shared[1]} rows say: {shared[0]}" if shared is not None else ""
    return describe_codes(codes) + said


def _count(job: Job, name: str) -> int:
    return job.counts.get(name, 0)


def redrive_hint(job: Job) -> str:
    """Say how a person sends a job's open letters again."""
    key = job.key
    target = f"target_dag_id={key.dag_id!r}, target_run_id={key.run_id!r}, target_task_id={key.task_id!r}" + (
        f", target_map_index={key.map_index}" if key.map_index >= 0 else ""
    )
    return (
        f"mend the cause, then send them again: BatchLLMRedriveOperator({target}), or "
        f"`batch-llm dead-letters redrive {job.job_id[:12]} --all --reason …`; to take them as they are: "
        f"`batch-llm accept {job.job_id[:12]} --reason …`"
    )
