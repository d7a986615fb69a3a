"""A short run of the chaos schedules, and four wrong engines that must not survive it."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main
from tests.chaos.catalogue import catalogue
from tests.chaos.drawing import draw
from tests.chaos.mutants import MUTANTS
from tests.chaos.playing import Setting
from tests.chaos.report import Report, tell_failure
from tests.chaos.telling import telling
from tests.chaos.workers import Order, play_all
from tests.chaos.worlds import PostgresLedgers, SqliteLedgers
from tests.integration.engine.kills import fault_points

SEED = 20260101
SETTING = Setting(SEED)
#: Schedules of that seed which between them hold most of the catalogue, and 35 of its kills or more.
SHORT = {
    "sqlite": (
        *(2, 27, 44, 58, 129, 131, 156, 167, 168, 208),
        *(232, 236, 245, 311, 363, 364, 376, 384, 448, 599),
    ),
    "postgresql": (
        *(6, 12, 19, 49, 59, 98, 112, 113, 119, 136),
        *(183, 203, 306, 353, 376, 413, 493, 498, 519, 570),
    ),
}
OF_A_MUTANT = 6
OUTAGES = {kind.kind: kind.outages for kind in (SqliteLedgers, PostgresLedgers)}


@pytest.mark.parametrize("ledger", OUTAGES)
def test_no_schedule_of_faults_loses_a_row_lands_one_twice_or_pays_twice(ledger: str) -> None:
    report, told = Report(), []
    for outcome in play_all(SETTING, [Order(ledger, str(number)) for number in SHORT[ledger]], jobs=4):
        report.add(outcome)
        told += [] if outcome.good else tell_failure(SETTING, outcome)
    assert report.good, "\n".join(told)
    assert report.schedules == len(SHORT[ledger]) and report.odd_errors == 0
    assert report.kills > 0 and len(report.hits) > len(SHORT[ledger])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_engine_that_is_wrong_does_not_survive(mutant: str) -> None:
    report = Report()
    orders = [Order("sqlite", name) for name in telling(mutant, OF_A_MUTANT)]
    for outcome in play_all(Setting(SEED, mutant), orders, jobs=3):
        report.add(outcome)
    assert report.schedules == OF_A_MUTANT
    assert report.rows_lost or report.paid_twice, report.line()


def test_a_schedule_can_be_played_again_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", str(SEED), "--ledger", "sqlite", "--schedule", "kill submit.after_create#0"]) == 0
    told = capfd.readouterr().out
    assert "killed at submit.after_create" in told
    assert "schedules=1 " in told and "rows_lost=0 landed_twice=0 paid_twice=0" in told


@pytest.mark.parametrize("ledger", OUTAGES)
def test_the_seed_decides_everything_about_a_schedule(ledger: str) -> None:
    faults = catalogue(OUTAGES[ledger])
    for name in ["0", "17", *(f"{fault}#3" for fault in faults)]:
        assert draw(7, ledger, name, faults) == draw(7, ledger, name, faults)
    assert draw(7, ledger, "17", faults) != draw(8, ledger, "17", faults)


#: Met only where another job has asked the same; killed at in ``engine/test_reuse_kills.py``.
ELSEWHERE = {"reuse.looked_up", "reuse.source_read"}


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("ledger", OUTAGES)
def test_every_fault_leads_some_schedule_and_every_point_of_the_engine_is_killed_at(
    ledger: str, reuse: bool
) -> None:
    faults = catalogue(OUTAGES[ledger], reuse=reuse)
    missing = {f"kill {point}" for point in set(fault_points()) - ELSEWHERE} - set(faults)
    assert missing == (set() if reuse else {"kill reuse.before_recorded"})
    leads = {draw(SEED, ledger, str(number), faults).lead for number in range(len(faults))}
    assert leads == set(faults)
