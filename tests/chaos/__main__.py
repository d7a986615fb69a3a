"""``python -m tests.chaos``: seeded schedules of faults, and one line that must end in three zeros."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable

from tests.chaos.catalogue import catalogue
from tests.chaos.mutants import MUTANTS
from tests.chaos.playing import Setting
from tests.chaos.protocols import PROTOCOLS
from tests.chaos.report import ENOUGH, Report, short_of, table, tell_failure
from tests.chaos.telling import protocol_of, telling
from tests.chaos.workers import Order, play_all
from tests.chaos.worlds import PostgresLedgers, SqliteLedgers

LEDGERS = {kind.kind: kind for kind in (SqliteLedgers, PostgresLedgers)}
#: Rounds of directed schedules before a fault that is still short is given up.
_ROUNDS = 10
#: Schedules for each protocol but the first, where all are played.
_OF_EACH_OTHER = 100
_ALL = "all"
_SEED = 20260101


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit status: 0 if all zeros are zeros and, in a full run, every fault was hit."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.protocol == _ALL:
        if args.schedule is not None or args.mutant is not None:
            parser.error("name one protocol")
        return _all_protocols(args)
    run = _Run(args, args.protocol or protocol_of(args.mutant))
    if args.schedule is not None:
        return run.replay(args.schedule)
    if args.mutant is not None:
        return run.mutant()
    return run.everything()


def _all_protocols(args: argparse.Namespace) -> int:
    """Play everything over the first protocol, then some schedules over each of the others."""
    runs = [_Run(args, PROTOCOLS[0])]
    status = runs[0].everything()
    args.ledger, args.no_directed = SqliteLedgers.kind, True
    args.schedules = min(args.schedules, _OF_EACH_OTHER)
    for protocol in PROTOCOLS[1:]:
        if runs[-1].broken_off:
            break
        print(flush=True)
        runs.append(_Run(args, protocol))
        status |= runs[-1].everything()
    print()
    for protocol, run in zip(PROTOCOLS, runs, strict=False):
        print(f"{protocol}: {run.line()}")
    return status


class _Run:
    def __init__(self, args: argparse.Namespace, protocol: str) -> None:
        self._setting = Setting(args.seed, args.mutant, args.reuse, protocol)
        self._jobs = args.jobs
        self._schedules, self._directed = args.schedules, not args.no_directed
        kinds = list(LEDGERS) if args.ledger == _ALL else [args.ledger]
        self._faults = {
            kind: list(catalogue(LEDGERS[kind].outages, reuse=args.reuse, protocol=protocol))
            for kind in kinds
        }
        self._reports = {kind: Report() for kind in kinds}
        self._total = Report()
        self._began = time.monotonic()
        self.broken_off = False

    def line(self) -> str:
        """Return the one line that counts."""
        return self._total.line() + f" unfinished={self._total.unfinished}"

    def everything(self) -> int:
        """Play all schedules, then directed ones until each fault has hits enough; tell what came of it,
        also where it is broken off with Ctrl-C or SIGTERM."""
        over = f"over the protocol of {self._setting.protocol}"
        print(
            f"seed {self._setting.seed}, {over}, {self._schedules} schedules for each of: "
            f"{', '.join(self._faults)}"
        )
        try:
            self._play_enough()
        except KeyboardInterrupt:
            print("broken off")
            self.broken_off = True
        return self._tell()

    def _play_enough(self) -> None:
        self._play(Order(kind, str(number)) for number in range(self._schedules) for kind in self._faults)
        for attempt in range(_ROUNDS if self._directed else 0):
            missing = self._missing()
            if not missing:
                break
            told = ", ".join(f"{kind} {len(faults)}" for kind, faults in missing.items())
            print(f"directed schedules for faults with fewer than {ENOUGH} hits: {told}")
            self._play(
                Order(kind, f"{fault}#{attempt}-{number}")
                for kind, faults in missing.items()
                for fault, hits in faults.items()
                for number in range((ENOUGH - hits) * (attempt + 1))  # what is rare takes more of them
            )

    def mutant(self) -> int:
        """Play schedules that a wrong engine should not survive; here non-zeros are right."""
        mutant = self._setting.mutant
        assert mutant is not None
        print(f"seed {self._setting.seed}, mutant {mutant}, over the protocol of {self._setting.protocol}")
        for kind in self._faults:
            names = telling(mutant, self._schedules)
            self._play([Order(kind, name) for name in names], quiet=True)
        print(self._total.line())
        print(self._total.aside())
        return 0 if self._total.good else 1

    def replay(self, name: str) -> int:
        """Play one schedule and tell its whole story."""
        orders = [Order(kind, name) for kind in self._faults]
        for outcome in play_all(self._setting, orders, jobs=1):
            self._total.add(outcome)
            print(f"{outcome.ledger} schedule {outcome.name}, {outcome.seconds:.1f} s")
            print("\n".join(f"    {line}" for line in [*outcome.story, outcome.unfinished]))
        print(self._total.line())
        print(self._total.aside())
        return 0 if self._total.good else 1

    def _play(self, orders: Iterable[Order], *, quiet: bool = False) -> None:
        orders = list(orders)
        outcomes = play_all(self._setting, orders, jobs=self._jobs)
        for done, outcome in enumerate(outcomes, start=1):
            self._total.add(outcome)
            self._reports[outcome.ledger].add(outcome)
            if not outcome.good and not quiet:
                print("\n".join(tell_failure(outcome)), flush=True)
            if done % 50 == 0 or done == len(orders):
                spent = time.monotonic() - self._began
                print(f"  {done} of {len(orders)} played, {spent:.0f} s", file=sys.stderr, flush=True)

    def _missing(self) -> dict[str, dict[str, int]]:
        missing = {kind: short_of(report.hits, self._faults[kind]) for kind, report in self._reports.items()}
        return {kind: faults for kind, faults in missing.items() if faults}

    def _tell(self) -> int:
        print("\n".join(table(self._reports, self._faults)))
        print()
        for kind, report in self._reports.items():
            print(f"{kind}: {report.line()}")
        print(self._total.aside())
        missing = self._missing() if self._directed and not self.broken_off else {}
        for kind, faults in missing.items():
            print(f"{kind}: fewer than {ENOUGH} hits: {', '.join(faults)}")
        print(f"master seed {self._setting.seed}; {time.monotonic() - self._began:.0f} s")
        print(self._total.line())
        return 0 if self._total.good and not missing and not self.broken_off else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=_SEED, help="master seed (default: %(default)s)")
    parser.add_argument("--ledger", choices=[*LEDGERS, _ALL], default=_ALL)
    parser.add_argument(
        "--schedules", type=int, default=500, help="schedules for each ledger (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=4, help="worker processes (default: %(default)s)")
    parser.add_argument("--schedule", help="play this one only, and tell its story")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="play with an engine that is wrong")
    parser.add_argument(
        "--protocol",
        choices=[*PROTOCOLS, _ALL],
        help=f"what the connection speaks; {_ALL}: {PROTOCOLS[0]}, then {_OF_EACH_OTHER} schedules over each "
        f"of the others, on SQLite (default: {PROTOCOLS[0]}, and with a mutant the one it is wrong over)",
    )
    parser.add_argument("--reuse", action="store_true", help="jobs have reuse")
    parser.add_argument(
        "--no-directed", action="store_true", help="no directed schedules for faults with few hits"
    )
    return parser


if __name__ == "__main__":
    # Told to end, it ends as after Ctrl-C: the workers take their databases along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
