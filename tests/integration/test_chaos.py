"""A short run of the chaos schedules over each protocol, and wrong engines that must not survive it."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main
from tests.chaos.catalogue import catalogue
from tests.chaos.drawing import draw
from tests.chaos.mutants import MUTANTS
from tests.chaos.playing import Setting
from tests.chaos.protocols import PROTOCOLS
from tests.chaos.report import Report, tell_failure
from tests.chaos.telling import protocol_of, telling
from tests.chaos.workers import Order, play_all
from tests.chaos.worlds import PostgresLedgers, SqliteLedgers
from tests.integration.engine.kills import fault_points

SEED = 20260101
SETTING = Setting(SEED)
#: Schedules of that seed which between them hold most of the catalogue, 26 of its kills among it.
SHORT = {
    "sqlite": (2, 27, 44, 131, 156, 167, 168, 232, 236, 363, 364, 376, 384, 448),
    "postgresql": (12, 19, 49, 59, 98, 112, 113, 119, 136, 306, 376, 413, 498, 570),
}
#: What is most of its own over each of the others: kills around create calls, refusals and doubts, and where
#: results are read; late posts, quirks, strangers.
OVER_OTHERS = {
    "azure": (116, 117, 128),
    "anthropic": (105, 112, 115, 128, 137),
    "gemini": (120, 126, 131, 133),
    "mistral": (101, 105, 108, 140),
}
OF_A_MUTANT = 4
OUTAGES = {kind.kind: kind.outages for kind in (SqliteLedgers, PostgresLedgers)}


@pytest.mark.parametrize("ledger", OUTAGES)
def test_no_schedule_of_faults_loses_a_row_lands_one_twice_or_pays_twice(ledger: str) -> None:
    report, told = Report(), []
    for outcome in play_all(SETTING, [Order(ledger, str(number)) for number in SHORT[ledger]], jobs=4):
        report.add(outcome)
        told += [] if outcome.good else tell_failure(outcome)
    assert report.good, "\n".join(told)
    assert report.schedules == len(SHORT[ledger]) and report.odd_errors == 0
    assert report.kills > 0 and len(report.hits) > len(SHORT[ledger])


def test_none_does_over_any_other_protocol() -> None:
    reports = {protocol: Report() for protocol in PROTOCOLS[1:]}
    orders = [
        Order("sqlite", str(number), protocol)
        for protocol, numbers in OVER_OTHERS.items()
        for number in numbers
    ]
    told = []
    for outcome in play_all(SETTING, orders, jobs=4):
        reports[outcome.setting.protocol].add(outcome)
        told += [] if outcome.good else tell_failure(outcome)
    assert not told, "\n".join(told)
    for protocol, report in reports.items():
        assert report.schedules == len(OVER_OTHERS[protocol]) and report.odd_errors == 0
        assert report.good and report.kills > 0, f"{protocol}: {report.line()}"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_engine_that_is_wrong_does_not_survive(mutant: str) -> None:
    report = Report()
    orders = [Order("sqlite", name) for name in telling(mutant, OF_A_MUTANT)]
    for outcome in play_all(Setting(SEED, mutant, protocol=protocol_of(mutant)), orders, jobs=2):
        report.add(outcome)
    assert report.schedules == OF_A_MUTANT
    assert report.rows_lost or report.paid_twice, report.line()


def test_a_schedule_can_be_played_again_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", str(SEED), "--ledger", "sqlite", "--schedule", "kill submit.after_create#0"]) == 0
    told = capfd.readouterr().out
    assert "killed at submit.after_create" in told
    assert "schedules=1 " in told and "rows_lost=0 landed_twice=0 paid_twice=0" in told


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ledger", OUTAGES)
def test_the_seed_decides_everything_about_a_schedule(ledger: str, protocol: str) -> None:
    faults = catalogue(OUTAGES[ledger], protocol=protocol)
    for name in ["0", "17", *(f"{fault}#3" for fault in faults)]:
        assert draw(7, ledger, name, faults) == draw(7, ledger, name, faults)
    assert draw(7, ledger, "17", faults) != draw(8, ledger, "17", faults)


#: Met only where another job has asked the same; killed at in ``engine/test_reuse_kills.py``.
ELSEWHERE = {"reuse.looked_up", "reuse.source_read"}


def kills(protocol: str, *, reuse: bool = False) -> set[str]:
    """Return the points of the engine that a catalogue kills at."""
    faults = catalogue((), reuse=reuse, protocol=protocol)
    return {fault.removeprefix("kill ") for fault in faults} & set(fault_points())


@pytest.mark.parametrize("reuse", [False, True])
def test_every_point_of_the_engine_is_killed_at_over_some_protocol(reuse: bool) -> None:
    killed_at = set().union(*(kills(protocol, reuse=reuse) for protocol in PROTOCOLS))
    missing = set(fault_points()) - killed_at - ELSEWHERE
    assert missing == (set() if reuse else {"reuse.before_recorded"})


def test_what_is_not_killed_at_over_a_protocol_cannot_come_there() -> None:
    everywhere = set.intersection(*map(kills, PROTOCOLS))
    rest = set().union(*map(kills, PROTOCOLS)) - everywhere
    uploads = {"submit.before_upload", "submit.after_upload"}
    assert {point.partition(".")[0] for point in rest - uploads} == {"refused", "doubt"}
    assert kills("openai") == kills("azure") == everywhere | uploads
    assert kills("anthropic") == everywhere | rest - uploads


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ledger", OUTAGES)
def test_every_fault_leads_some_schedule(ledger: str, protocol: str, reuse: bool) -> None:
    faults = catalogue(OUTAGES[ledger], reuse=reuse, protocol=protocol)
    leads = {draw(SEED, ledger, str(number), faults).lead for number in range(len(faults))}
    assert leads == set(faults)
