"""Plays one schedule: starts task processes as Airflow would, and lets its faults happen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.core.doubts import MAY_BE_OURS
from airflow_batch_llm.core.model import JobKey, JobState
from tests.chaos.catalogue import LEASED_POINTS
from tests.chaos.jobs import JobRun, Reading, Task, new_job
from tests.chaos.people import People
from tests.chaos.plans import SUSPEND, SUSPEND_BRIEFLY, At, Plan
from tests.chaos.processes import Process
from tests.chaos.protocols import SENT_LATE, UNMARKED
from tests.chaos.strangers import Strangers
from tests.chaos.work import LEASE, Stage, task_process, trigger_process
from tests.chaos.worlds import Ledgers

#: Task processes of one schedule before its faults are lifted, and afterwards.
_MOST_PROCESSES, _MOST_TO_THE_END = 60, 160
#: A job that has halted is cleared or resumed so often before it counts as unfinished.
_MOST_EXITS = 10
_LONGEST_PAUSE = 2.0
#: Waits for batches that may be ours, and run, before all of them end.
_WAITS_FOR_CANDIDATES = 3
#: How often the last task is cleared alone where a batch may have been left behind: a first look may show a
#: status that nobody knows.
_LOOKS_BEHIND = 2
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
#: Seconds in which all batches at the server must have ended.
_PATIENCE = 20.0


class Unfinished(AssertionError):
    """The job did not come to its end although all faults were lifted."""


class Actor(Process):
    """A task process. ``outcome`` is its last message of progress or error, None if it was killed."""

    def __init__(self, job: JobRun, task: Task, reading: Reading, action: Any) -> None:
        self.job, self.task, self.reading = job, task, reading
        self.outcome: dict[str, Any] | None = None
        self.told: list[dict[str, Any]] = []
        self.mark = job.mark
        self.why = ""
        super().__init__(action, self._take)

    def _take(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        if message["kind"] in ("progress", "error"):
            self.outcome = message
        elif message["kind"] == "pinned":
            self.job.readings.setdefault(self.mark, self.reading)
        elif message["kind"] == "standing":
            self.why = message["why"]


@dataclass
class _Sleeper:
    """A suspended process."""

    actor: Actor
    at: At
    since: float
    left: int


@dataclass
class Director:
    """Plays a plan.

    :param ledgers: takes the ledger away and brings it back.
    :param hits: fault -> how often it really happened.
    :param trace: what happened, in order.
    """

    plan: Plan
    stage: Stage
    ledgers: Ledgers
    hits: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    suspended_past_lease: bool = False
    kills: int = 0
    odd_errors: int = 0

    def __post_init__(self) -> None:
        self.jobs = [
            new_job(self.plan, number, f"run-{self.plan.name}-{number}") for number in range(self.plan.jobs)
        ]
        self.people = People(self)
        self.strangers = Strangers(self.stage.server)
        self._candidate_waits = 0
        self._ats = list(self.plan.ats)
        self._met = 0
        self._sleepers: list[_Sleeper] = []
        self._processes = 0
        self._holding = self.plan.deadline == "passed"
        self._deadline_met = False

    # -- the whole -----------------------------------------------------------------------------------
    def play(self) -> None:
        """Play the schedule, lift its faults, drive its jobs to their end.

        :raises Unfinished: that end is not reached.
        """
        try:
            if self.plan.strangers:
                self._let_strangers_in()
            self.stage.server.set_scenario(self.plan.scenario())
            self._play_with_faults()
            self._lift()
            for job in self.jobs:
                self._to_the_end(job)
        finally:
            for sleeper in self._sleepers:
                sleeper.actor.kill()

    def _let_strangers_in(self) -> None:
        """Let others have batches at the provider that run, one of each size that ours can have."""
        self.stage.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0.5}})
        self.strangers.send(range(1, self.plan.per_batch + 1))
        self.hit("strangers with the same key")

    def note(self, what: str) -> None:
        """Write a line of the trace."""
        self.trace.append(what)

    def hit(self, fault: str) -> None:
        """Count a fault that happened."""
        self.hits[fault] += 1

    def _play_with_faults(self) -> None:
        turn = 0
        while self._processes < _MOST_PROCESSES:
            waiting = [job for job in self.jobs if job.tasks]
            if not waiting:
                if not self.people.act_when_settled(self.jobs[0]):
                    break
                continue
            self._run_task(waiting[turn % len(waiting)])
            turn += 1

    def _lift(self) -> None:
        self.note("all faults are lifted")
        self._ats, self._holding = [], False
        while self._sleepers:
            self._wake(self._sleepers.pop(0))
        self.stage.server.set_scenario({})
        self.stage.server.release()
        if self._may_have_left_one_behind:
            self._wait_until_all_has_ended()

    @property
    def _may_have_left_one_behind(self) -> bool:
        """Whether a batch may have been sent late that is found only when it has ended and the job settles
        again."""
        return self.suspended_past_lease and self.stage.protocol in UNMARKED

    def _wait_until_all_has_ended(self) -> None:
        until = time.monotonic() + _PATIENCE
        while any(batch["status"] not in _ENDED for batch in self.stage.server.batches()):
            if time.monotonic() > until:
                raise Unfinished("batches at the server do not end")
            time.sleep(0.02)

    def _to_the_end(self, job: JobRun) -> None:
        exits, looks = 0, _LOOKS_BEHIND if self._may_have_left_one_behind else 0
        job.job_timeout = None
        job.tasks = job.tasks or [Task.DEAD_LETTER]
        while True:
            while job.tasks:
                if self._processes > _MOST_TO_THE_END:
                    raise Unfinished(f"{self._processes} processes and still at {job.tasks[0]}")
                self._run_task(job)
            state = self.state_of(job)
            if state is JobState.SETTLED and job.expected is not None:
                if not looks:
                    return
                looks -= 1
                job.tasks = [Task.DEAD_LETTER]
                continue
            exits += 1
            if exits > _MOST_EXITS:
                raise Unfinished(f"the job is {state} after {exits} exits")
            self.people.bring_to_an_end(job)

    def key_of(self, job: JobRun) -> JobKey:
        """Return the job's key in the ledger."""
        return JobKey(self.stage.ledger.namespace(), "tickets", job.run_id, "labels.submit")

    def state_of(self, job: JobRun) -> JobState | None:
        """Return the job's state as the ledger has it."""
        found = self.stage.ledger.get_job(self.key_of(job).job_id)
        return found.state if found is not None else None

    # -- task processes ------------------------------------------------------------------------------
    def _run_task(self, job: JobRun) -> None:
        """Run one process of the job's next task (or two at once) and do what Airflow does then."""
        copies = 2 if self.plan.twice else 1
        actors = [self.start(job, armed=not number) for number in range(copies)]
        if copies > 1:
            self.hit("two processes for every task")
        self.follow(actors)
        if self.plan.jobs > 1 and job is not self.jobs[0]:
            self.hit("two jobs share a connection")

    def start(self, job: JobRun, *, armed: bool = True) -> Actor:
        """Start a process of the job's next task.

        :param armed: the next fault of the schedule may happen in it.
        """
        self._processes += 1
        task, reading = job.tasks[0], job.next_reading()
        if self.plan.moving and task is Task.SUBMIT:
            self.hit("the source changes with every reading")
        at = self._ats[0] if armed and self._ats and job is self.jobs[0] else None
        action = task_process(self.stage, job, task, reading, at, self._met)
        job.first_try = False
        return Actor(job, task, reading, action)

    def follow(self, actors: list[Actor]) -> None:
        """See processes of one task through, then go on as the best of their outcomes says."""
        job, task = actors[0].job, actors[0].task
        ended = [actor for actor in actors if self._see_through(actor)]
        best = max((actor.outcome or {} for actor in ended), key=_rank, default={})
        self._wake_whose_time_has_come(len(ended))
        if best.get("kind") == "error":
            self._after_error(job, best)
        elif best.get("kind") == "progress" and best["done"]:
            if job.tasks and job.tasks[0] is task:
                job.tasks.pop(0)
        elif best.get("kind") == "progress":
            self._wait(job, best)

    def _see_through(self, actor: Actor) -> bool:
        """Wait for the process's end; False where it was suspended and is left as it is."""
        bring_back: Callable[[], None] | None = None
        try:
            while True:
                actor.wait()
                self._met += sum(message["kind"] == "met" for message in actor.told)
                if actor.ended:
                    break
                if actor.why == SUSPEND:
                    self._leave_suspended(actor)
                    return False
                actor.told.clear()
                if actor.why == SUSPEND_BRIEFLY:
                    self._let_another_pass(actor)
                else:
                    bring_back = self._take_away(actor.why, str(actor.standing))
                actor.go_on()
        finally:
            if bring_back is not None:
                bring_back()
        self._note_end(actor)
        return True

    def _note_end(self, actor: Actor) -> None:
        for message in actor.told:
            if message["kind"] == "killed":
                self.kills += 1
                self._disarm(f"kill {message['point']}")
                self.note(f"{actor.job.run_id} {actor.task}: killed at {message['point']}")
            elif message["kind"] == "disturbed":
                self._disarm(message["what"])
                self.note(f"{actor.job.run_id} {actor.task}: {message['what']} at {message['point']}")
        if actor.outcome is not None:
            self.note(f"{actor.job.run_id} {actor.task}: {_short(actor.outcome)}")
            self.odd_errors += actor.outcome.get("code") == "odd"
        elif not actor.killed:
            raise Unfinished(f"a {actor.task} process ended without a word, status {actor.status}")

    def _disarm(self, fault: str) -> None:
        self.hit(fault)
        self._ats, self._met = self._ats[1:], 0

    def _after_error(self, job: JobRun, error: dict[str, Any]) -> None:
        """Airflow tries again, unless the error says that this is of no use: then a person clears."""
        if error["deterministic"]:
            self.people.clear_after_red_task(job)
        else:
            time.sleep(0.02)

    # -- suspended processes -------------------------------------------------------------------------
    def _leave_suspended(self, actor: Actor) -> None:
        at = self._ats[0]
        self._ats, self._met = self._ats[1:], 0
        self.note(f"{actor.job.run_id} {actor.task}: suspended at {at.point}")
        self._sleepers.append(_Sleeper(actor, at, time.monotonic(), at.wake_after))

    def _let_another_pass(self, actor: Actor) -> None:
        """While it stands still, another process of the task runs: it must wait for the lease."""
        self._disarm("suspended within its lease")
        self.note(f"{actor.job.run_id} {actor.task}: stands still at {actor.standing} while another runs")
        began = time.monotonic()
        self._see_through(self.start(actor.job, armed=False))
        if time.monotonic() - began > LEASE:
            self.suspended_past_lease = True  # a machine that slow has made it so

    def _wake_whose_time_has_come(self, processes: int) -> None:
        for sleeper in list(self._sleepers):
            sleeper.left -= processes
            if sleeper.left <= 0:
                self._sleepers.remove(sleeper)
                self._wake(sleeper)

    def _wake(self, sleeper: _Sleeper) -> None:
        """Let it go on and see it through. It is a try that Airflow has given up: nobody heeds it."""
        slept, actor = time.monotonic() - sleeper.since, sleeper.actor
        leased = sleeper.at.point in LEASED_POINTS
        if slept > LEASE:
            self.suspended_past_lease = True
        past_lease = leased and slept > LEASE
        if past_lease and sleeper.at.dies_at == "submit.after_create":
            self.hit(SENT_LATE)
        self.hit("suspended past its lease" if past_lease else "suspended at another point")
        self.note(
            f"{actor.job.run_id} {actor.task}: goes on from {sleeper.at.point}"
            + (", past its lease" if past_lease else "")
        )
        actor.told.clear()
        actor.go_on()
        before = self._ats, self._met
        self._see_through(actor)
        self._ats, self._met = before

    # -- outages -------------------------------------------------------------------------------------
    def _take_away(self, what: str, point: str) -> Callable[[], None] | None:
        """Let an outage begin; returns what ends it, None where it has ended already."""
        self._disarm(what)
        self.note(f"{what} while a task stands at {point}")
        which, _, how = what.partition(" ")
        if which == "ledger":
            return self.ledgers.take_away(how)
        self.stage.server.kill9()
        if how == "restarted":
            self.stage.server.start()
            return None
        return self.stage.server.start

    # -- waiting -------------------------------------------------------------------------------------
    def _wait(self, job: JobRun, progress: dict[str, Any]) -> None:
        """Wait as the triggerer does, unless people or the schedule have other plans."""
        if job is self.jobs[0] and progress["batches"]:
            known = [batch for batch in progress["batches"] if batch not in progress["provisional"]]
            if self.people.act_while_waiting(job, known):
                return
            if progress["deadline"] and not self._deadline_met and self.plan.deadline:
                self._meet_deadline(job, progress)
                return
        holding = self._holding and progress["deadline"]
        for batch_id in progress["batches"]:
            # What may be somebody else's is not cancelled when the time is over: it ends by itself.
            if not holding or batch_id in progress["provisional"]:
                self.stage.server.release(batch_id)
        if progress["reason"] == MAY_BE_OURS:
            self._candidate_waits += 1
            if self._candidate_waits % _WAITS_FOR_CANDIDATES == 0:
                self.note("all that runs at the provider ends")
                self.stage.server.release()
        if not progress["batches"]:
            self._sleep_until(progress["not_before"])
            return
        fault = self.plan.triggers.pop(0) if self.plan.triggers and job is self.jobs[0] else None
        self._trigger(job, progress, fault)

    def _trigger(self, job: JobRun, progress: dict[str, Any], fault: str | None) -> None:
        if fault is not None:
            self.hit(fault)
            self.note(f"{job.run_id}: {fault}")
        if fault == "deferral time-out":
            return
        copies = 2 if fault == "trigger twice" else 1
        waits = [self._new_trigger(job, progress) for _ in range(copies)]
        if fault == "trigger restarted":
            waits[0].kill()
            waits = [self._new_trigger(job, progress)]
        for wait in waits:
            wait.wait()
            if wait.status:
                raise Unfinished(f"a wait ended with status {wait.status}")

    def _new_trigger(self, job: JobRun, progress: dict[str, Any]) -> Process:
        # A batch that stands still for the whole schedule is looked at by the engine all the same.
        soon = self.stage.ledger.now() + _LONGEST_PAUSE
        progress = {**progress, "not_before": min(progress["not_before"] or soon, soon)}
        return Process(trigger_process(self.stage, job, progress), lambda message: None)

    def _meet_deadline(self, job: JobRun, progress: dict[str, Any]) -> None:
        """Let the job's time pass while its batches stand still; ``late event``: they end behind it."""
        self._deadline_met = True
        self.hit(f"deadline {self.plan.deadline}")
        self.note(f"{job.run_id}: deadline {self.plan.deadline}")
        if self.plan.deadline == "passed":
            self._trigger(job, progress, None)
            return
        self._sleep_until(progress["deadline"] + 0.05)
        self.stage.server.release()
        self._trigger(job, {**progress, "deadline": None}, None)

    def _sleep_until(self, when: float | None) -> None:
        pause = 0.03 if when is None else when - self.stage.ledger.now()
        time.sleep(min(max(pause, 0.02), _LONGEST_PAUSE))


def _rank(outcome: dict[str, Any]) -> int:
    """Done is better than waiting, waiting better than an error, an error better than no word."""
    if outcome.get("kind") == "progress":
        return 3 if outcome["done"] else 2
    return 1 if outcome else 0


def _short(outcome: dict[str, Any]) -> str:
    if outcome["kind"] == "error":
        return f"{outcome['type']} ({outcome['code']})"
    what = "done" if outcome["done"] else f"waits for {len(outcome['batches'])} batches"
    return f"{what}, job {outcome['state']}" + (f" ({outcome['reason']})" if outcome["reason"] else "")
