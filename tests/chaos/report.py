"""Sums schedules up: hits for each fault, and the one line that counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.playing import Outcome

#: Hits that each fault must have in a full run.
ENOUGH = 5


@dataclass
class Report:
    """What came of the schedules so far, over all ledgers or of one."""

    schedules: int = 0
    kills: int = 0
    rows_lost: int = 0
    landed_twice: int = 0
    paid_twice: int = 0
    residue: int = 0
    unfinished: int = 0
    odd_errors: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count a schedule."""
        found = outcome.findings
        self.schedules += 1
        self.kills += outcome.kills
        self.rows_lost += found.rows_lost
        self.landed_twice += found.landed_twice
        self.paid_twice += found.paid_twice
        self.residue += found.residue
        self.unfinished += bool(outcome.unfinished)
        self.odd_errors += outcome.odd_errors
        self.hits += outcome.hits

    @property
    def good(self) -> bool:
        """Whether nothing was lost, landed twice or paid twice, and every job came to its end."""
        return not (self.rows_lost or self.landed_twice or self.paid_twice or self.unfinished)

    def line(self) -> str:
        """Return the one line."""
        lost_replies = sum(n for fault, n in self.hits.items() if fault.endswith(" lost_reply"))
        return (
            f"schedules={self.schedules} kills={self.kills} lost_replies={lost_replies} "
            f"rows_lost={self.rows_lost} landed_twice={self.landed_twice} paid_twice={self.paid_twice}"
        )

    def aside(self) -> str:
        """Return what is counted beside it."""
        return (
            f"jobs that came to no end: {self.unfinished}; errors that are none of the package's: "
            f"{self.odd_errors}; rows paid for again by a process suspended past its lease, cancelled and "
            f"recorded: {self.residue}"
        )


def short_of(hits: Counter[str], faults: list[str]) -> dict[str, int]:
    """Return the faults that have too few hits, and how many they have."""
    return {fault: hits[fault] for fault in faults if hits[fault] < ENOUGH}


def table(by_ledger: dict[str, Report], faults: dict[str, list[str]]) -> list[str]:
    """Return a table of hits: a line for each fault, a column for each ledger."""
    names = list(by_ledger)
    every = list(dict.fromkeys(fault for name in names for fault in faults[name]))
    width = max(map(len, every))
    lines = [f"{'fault':{width}}" + "".join(f"{name:>12}" for name in names)]
    for fault in every:
        cells = [str(by_ledger[name].hits[fault]) if fault in faults[name] else "-" for name in names]
        lines.append(f"{fault:{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return lines


def tell_failure(outcome: Outcome) -> list[str]:
    """Return what is printed about a schedule that failed."""
    setting = outcome.setting
    how = f"--seed {setting.seed} --protocol {setting.protocol}" + (" --reuse" if setting.reuse else "")
    return [
        f"FAILED {outcome.ledger} schedule {outcome.name}; play it again with: python -m tests.chaos "
        f"{how} --ledger {outcome.ledger} --schedule '{outcome.name}'",
        *(f"    {line}" for line in outcome.story),
        *(f"    {line}" for line in outcome.unfinished.splitlines()),
    ]
