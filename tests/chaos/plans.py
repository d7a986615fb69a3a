"""A schedule before it is played: everything that was decided, from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: What an :class:`At` can do besides standing still for an outage of ledger or server.
KILL, SUSPEND, DISK_FULL, DISK_BROKEN, RESET_UPLOAD = "kill", "suspend", "disk full", "disk broken", "reset"
#: Stands still while another process of the same task runs; both go on long before the lease ends.
SUSPEND_BRIEFLY = "suspend briefly"


@dataclass(frozen=True)
class At:
    """A fault at a point of a task process.

    :param point: name of the fault point.
    :param nth: at which time it is met, counted from when the fault before it happened, over processes.
    :param what: one of the above, ``ledger <outage>``, ``server killed`` or ``server restarted``.
    :param wake_after: a suspended process goes on after so many other processes have ended.
    :param dies_at: a suspended process is killed there after it went on.
    """

    point: str
    nth: int
    what: str
    wake_after: int = 0
    dies_at: str | None = None


@dataclass
class Plan:
    """Everything decided about one schedule.

    :param name: number, or ``fault#number`` for a directed one.
    :param lead: the catalogue's fault that this schedule is sure to be fit for.
    :param hold: batches stand still half-way until the wait for them has begun.
    :param moving: the source changes with every reading.
    :param strict: the first judge refuses the answers of some rows; they die by it.
    :param twice: each task runs in two processes at once.
    :param deadline: "passed", "late event" or None.
    :param fails_late: ``on_deadline="fail"``: what is under way then is left to a person.
    :param acts: what people do, in order.
    :param triggers: what happens to the waits, in order.
    :param resume: halted jobs are resumed where that is allowed, not cleared.
    :param inline: whether the requests go along with the create call: "never", "always", or "changes" from
        process to process.
    :param strangers: others have batches of every size at the provider, with the same key.
    :param pace: what the scenario's ``pace`` has beside ``hold``; :param quirks: members of the scenario.
    """

    name: str
    seed: int
    ledger: str
    lead: str
    rows: int = 6
    per_batch: int = 3
    jobs: int = 1
    max_rounds: int = 2
    call_retries: int = 0
    hold: bool = False
    structured: bool = False
    moving: bool = False
    strict: bool = False
    twice: bool = False
    deadline: str | None = None
    fails_late: bool = False
    gone_after: float = 0.2
    resume: bool = False
    ats: list[At] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)
    row_rules: list[dict[str, Any]] = field(default_factory=list)
    batch_rules: list[dict[str, Any]] = field(default_factory=list)
    call_rules: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    absent_file_id: str = "null"
    inline: str = "never"
    strangers: bool = False
    pace: dict[str, Any] = field(default_factory=dict)
    quirks: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def scenario(self) -> dict[str, Any]:
        """Return the server's scenario."""
        return {
            "rows": self.row_rules,
            "batches": self.batch_rules,
            "calls": self.call_rules,
            "results": self.results,
            "absent_file_id": self.absent_file_id,
            "pace": {"seconds": 600 if self.hold else 0, "hold_at": 0.5, **self.pace},
            **self.quirks,
        }

    def add_rule(self, kind: str, label: str, rule: dict[str, Any]) -> None:
        """Add a rule of the scenario, remembered under the catalogue's name for it."""
        rules = {"rows": self.row_rules, "batches": self.batch_rules, "calls": self.call_rules}[kind]
        self.labels[f"{kind}/{len(rules)}"] = label
        rules.append(rule)

    def describe(self) -> list[str]:
        """Say what was decided, for people who look at a failed schedule."""
        lines = [
            f"{self.rows} rows in batches of {self.per_batch}, {self.jobs} job(s), max_rounds "
            f"{self.max_rounds}, {self.call_retries} retries of calls"
        ]
        flags = ("hold", "structured", "moving", "strict", "twice", "fails_late", "resume", "strangers")
        lines.append("set: " + (", ".join(flag for flag in flags if getattr(self, flag)) or "nothing"))
        lines += [f"fault: {at}" for at in self.ats]
        lines += [f"scenario {label}" for label in self.labels.values()]
        lines += [f"results: {name}={value}" for name, value in self.results.items()]
        lines += [f"person: {act}" for act in self.acts]
        lines += [f"trigger: {fault}" for fault in self.triggers]
        if self.deadline:
            lines.append(f"deadline: {self.deadline}")
        if self.inline != "never":
            lines.append(f"requests go along with the create call: {self.inline}")
        return lines


Shape = Callable[[Plan, random.Random], None]
