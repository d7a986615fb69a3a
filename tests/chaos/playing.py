"""Plays schedules and keeps what came of each."""

from __future__ import annotations

import shutil
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.catalogue import catalogue
from tests.chaos.director import Director, Unfinished
from tests.chaos.drawing import draw
from tests.chaos.processes import Hung
from tests.chaos.records import Findings, compare, server_hits
from tests.chaos.work import Stage
from tests.chaos.worlds import Ledgers, QuickServer


@dataclass(frozen=True)
class Setting:
    """What all schedules of a run have in common.

    :param mutant: the wrong engine they are played with, None for the right one.
    :param reuse: jobs have ``reuse``.
    :param protocol: what the connection speaks.
    """

    seed: int
    mutant: str | None = None
    reuse: bool = False
    protocol: str = "openai"


@dataclass
class Outcome:
    """What came of one schedule."""

    setting: Setting
    name: str
    ledger: str
    findings: Findings
    hits: Counter[str]
    kills: int = 0
    odd_errors: int = 0
    unfinished: str = ""
    seconds: float = 0.0
    story: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        found = self.findings
        return not (found.rows_lost or found.landed_twice or found.paid_twice or self.unfinished)


def play(setting: Setting, name: str, ledgers: Ledgers, folder: Path) -> Outcome:
    """Play one schedule in a fresh world of its own."""
    began = time.monotonic()
    faults = catalogue(ledgers.outages, reuse=setting.reuse, protocol=setting.protocol)
    plan = draw(setting.seed, ledgers.kind, name, faults)
    folder = folder / "schedule"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with QuickServer(folder / "server") as server:
        stage = Stage(server, ledgers.new(), folder, setting.mutant, setting.reuse, setting.protocol)
        director = Director(plan, stage, ledgers)
        findings, unfinished = Findings(), ""
        try:
            director.play()
            findings = compare(
                stage,
                [(director.key_of(job), job) for job in director.jobs],
                server.charges(),
                suspended=director.suspended_past_lease,
            )
            for what in director.strangers.harmed(stage.ledger):
                findings.lost(f"somebody else's batch: {what}")
        except (Unfinished, Hung) as error:
            unfinished = str(error)
        except Exception:
            unfinished = traceback.format_exc()
        hits = director.hits + server_hits(server.database, plan)
    return Outcome(
        setting,
        name,
        ledgers.kind,
        findings,
        hits,
        director.kills,
        director.odd_errors,
        unfinished,
        time.monotonic() - began,
        [*plan.describe(), "--", *director.trace, *findings.texts],
    )
