"""What people do to a job: clear it, or parts of it, change what it asks, mark it, delete its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Rerun
from tests.chaos.catalogue import SETTLED_ACTS, WAITING_ACTS
from tests.chaos.jobs import JobRun, Task
from tests.chaos.processes import Process
from tests.chaos.work import cancel_process

if TYPE_CHECKING:
    from tests.chaos.director import Director

#: Halts after which a resume would pay again for what is paid: it is refused then.
_NO_RESUME = "BLLM-031"


class People:
    """Everybody who can click."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._acts = list(director.plan.acts)
        self._when_settled: dict[str, Callable[[JobRun], None]] = {
            "clear after success": lambda job: job.clear(),
            "clear after red": lambda job: job.clear(),
            "backfill reprocesses the run": lambda job: job.clear(),
            "clear after a prompt changed": self._change_prompt,
            "clear after a row was added": self._add_row,
            "clear after a row was removed": self._remove_row,
            "clear after the model changed": self._change_model,
            "clear after the schema changed": self._change_schema,
            "clear submit alone": self._clear_submit,
            "clear reconcile alone": self._clear_reconcile,
            "clear retry alone": self._clear_retry,
            "clear dead_letter alone": self._clear_dead_letter,
            "clear with rerun failed": lambda job: job.clear(rerun=Rerun.FAILED),
            "clear with rerun fresh": lambda job: job.clear(rerun=Rerun.FRESH),
            "delete the run, start again": lambda job: job.delete_run(),
        }
        assert set(self._when_settled) == set(SETTLED_ACTS)

    # -- when all tasks have ended -----------------------------------------------------------------
    def act_when_settled(self, job: JobRun) -> bool:
        """Do the next thing on the list; False where there is none."""
        self._acts = [act for act in self._acts if act not in WAITING_ACTS]
        if not self._acts:
            return False
        act = self._acts.pop(0)
        self._note(job, act)
        self._when_settled[act](job)
        return True

    def _change_prompt(self, job: JobRun) -> None:
        texts = dict(job.source.texts)
        first = next(iter(texts))
        texts[first] += f" Asked once more, {job.last_mark}."
        job.source = replace(job.source, texts=texts)
        job.clear()

    def _add_row(self, job: JobRun) -> None:
        number = len(job.source.texts) + 50
        new = {f"new-{number}": f"{job.run_id}: ticket number {number}. Came later."}
        job.source = replace(job.source, texts={**new, **job.source.texts})
        job.clear()

    def _remove_row(self, job: JobRun) -> None:
        texts = dict(job.source.texts)
        if len(texts) > 1:
            del texts[next(iter(texts))]
        job.source = replace(job.source, texts=texts)
        job.clear()

    def _change_model(self, job: JobRun) -> None:
        job.source = replace(job.source, model=f"m-{job.last_mark}")
        job.clear()

    def _change_schema(self, job: JobRun) -> None:
        if not job.plan.strict:
            job.source = replace(job.source, schema=job.source.schema + 1)
        job.clear()

    def _clear_submit(self, job: JobRun) -> None:
        """The operator refuses this while later tasks count as finished; here they are cleared next."""
        job.clear()

    def _clear_reconcile(self, job: JobRun) -> None:
        job.judge_version = 2
        job.tasks = [Task.RECONCILE]

    def _clear_retry(self, job: JobRun) -> None:
        job.retry_clears += 1
        job.tasks = [Task.RETRY_ALONE]

    def _clear_dead_letter(self, job: JobRun) -> None:
        job.tasks = [Task.DEAD_LETTER]

    # -- while a task waits ------------------------------------------------------------------------
    def act_while_waiting(self, job: JobRun, batches: list[str]) -> bool:
        """Do the next thing that is done to a waiting task; False where there is none.

        :param batches: what it waits for and is known to be its own.
        """
        if not self._acts or self._acts[0] not in WAITING_ACTS:
            return False
        act = self._acts.pop(0)
        self._note(job, act)
        if act == "clear while it waits":
            job.clear()
        elif act in ("mark success while it waits", "mark failed while it waits"):
            job.tasks.pop(0)
        elif act == "mark failed with cancel_on_kill":
            killer = Process(cancel_process(self._director.stage, job, batches), lambda message: None)
            killer.wait()
            job.tasks.pop(0)
        elif act == "delete the run while it waits":
            job.delete_run()
        elif act == "the same job twice at once":
            copies = [self._director.start(job, armed=armed) for armed in (True, False)]
            self._director.follow(copies)
        return True

    # -- red and halted ----------------------------------------------------------------------------
    def clear_after_red_task(self, job: JobRun) -> None:
        """A task has failed for good: the whole group is cleared."""
        self._note(job, "clear after red")
        job.clear(job_timeout=job.job_timeout)

    def bring_to_an_end(self, job: JobRun) -> None:
        """Resume a halted job where the plan says so and it is allowed, else clear the group."""
        director, ledger = self._director, self._director.stage.ledger
        found = ledger.get_job(director.key_of(job).job_id)
        halted = found is not None and found.state is JobState.HALTED and found.plan_id is not None
        if found is not None and halted and director.plan.resume and found.halt_code != _NO_RESUME:
            director.note(f"{job.run_id}: resume ({found.halt_code})")
            bound = ledger.now() + 3600.0
            ledger.resume_job(found, actor="somebody", reason="the cause is mended", deadline_at=bound)
            job.tasks = [Task.RETRY, Task.DEAD_LETTER]
            return
        director.note(f"{job.run_id}: clear, as the job is {found.state if found else 'not there'}")
        job.clear()

    def _note(self, job: JobRun, act: str) -> None:
        self._director.hit(act)
        self._director.note(f"{job.run_id}: {act}")
