"""The demo's table, and the checks that every ticket is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from example_dags.demo.facts import Facts, Places

#: DESIGN: an XCom of ours stays below this many bytes.
XCOM_BYTES = 4096


@dataclass(frozen=True)
class Check:
    """One statement about the rows, whether it holds, and the numbers behind it."""

    statement: str
    holds: bool
    numbers: str

    def __str__(self) -> str:
        return f"  [{'ok' if self.holds else 'FAILED'}] {self.statement}: {self.numbers}"


def table(facts: Facts, places: Places) -> str:
    """Return the table as text."""
    paid_in, paid_out = facts.paid_tokens()
    lines: list[tuple[str, str]] = [
        ("requests (tickets of the night)", str(len(facts.tickets))),
        ("answered in round 0", str(facts.answered(first_round=True))),
        ("answered after retry", str(facts.answered(first_round=False))),
        ("answered after re-drive", str(sum(a.ticket in facts.redriven for a in facts.answers))),
        ("dead letters", str(len(facts.unresolved))),
    ]
    for (state, code), count in sorted(facts.dead_by_code().items()):
        lines.append((f"    {code} ({state})", str(count)))
    lines += [
        ("batches created", f"{len(facts.batches)}  ({_by_round(facts)})"),
        ("tokens paid (input / output)", f"{paid_in:,} / {paid_out:,}"),
        ("results", _shown(facts.results)),
        ("dead letters are in", f"{_shown(places.ledger)}, table batch_llm_dead_letter"),
        ("labels are in", f"{_shown(places.warehouse)}, table {facts.table}"),
    ]
    width = max(len(name) for name, _ in lines)
    rule = "-" * (width + 34)
    return "\n".join([rule, *(f"{name:<{width}}   {value}" for name, value in lines), rule])


def checks(facts: Facts) -> list[Check]:
    """Return what must hold for a settled night, checked against the rows."""
    tickets, answers = Counter(facts.tickets), Counter(a.ticket for a in facts.answers)
    dead = Counter(letter.ticket for letter in facts.unresolved)
    return [
        Check(
            "answered + dead = tickets",
            answers.total() + dead.total() == tickets.total() > 0,
            f"{answers.total()} + {dead.total()} = {tickets.total()}",
        ),
        Check(
            "each ticket is there exactly once",
            answers + dead == tickets and set(tickets.values()) == {1},
            f"{_twice(answers + dead)} twice, {len(tickets - (answers + dead))} missing, "
            f"{len((answers + dead) - tickets)} foreign",
        ),
        Check(
            f"table {facts.table} holds exactly the answered tickets",
            Counter(facts.landed) == answers,
            f"{len(facts.landed)} rows, {answers.total()} answers",
        ),
        Check(
            "dead letters that a re-drive resolved have an answer",
            facts.redriven <= answers.keys(),
            f"{len(facts.redriven)} resolved",
        ),
        *_payment_checks(facts),
    ]


def _payment_checks(facts: Facts) -> list[Check]:
    paid = Counter(sent.wire_id for sent in facts.sent if sent.answered)
    times_sent = Counter(sent.wire_id for sent in facts.sent)
    final = [d for d in facts.unresolved if d.state == "open" and not d.exhausted]
    again = [d for d in final if times_sent[d.wire_id] > 1]
    ours = sum(b.input_tokens for b in facts.batches), sum(b.output_tokens for b in facts.batches)
    return [
        Check(
            "every answer was paid for exactly once (server's charge log)",
            paid == Counter(a.wire_id for a in facts.answers),
            f"{paid.total()} answers charged, {_twice(paid)} of them twice",
        ),
        Check(
            "no answered ticket was sent again (server's charge log)",
            sent_after_answer(facts) == 0,
            f"{len(facts.sent)} requests executed, {sent_after_answer(facts)} after an answer",
        ),
        Check(
            "no ticket that failed for good was sent again by the machine",
            not again,
            f"{len(final)} such tickets, {len(again)} sent again",
        ),
        Check(
            "the ledger's tokens are those the server charged",
            ours == facts.paid_tokens(),
            f"{sum(ours):,} and {sum(facts.paid_tokens()):,}",
        ),
    ]


def sent_after_answer(facts: Facts) -> int:
    """Return how many requests were executed for rows that had an answer already."""
    answered: set[str] = set()
    late = 0
    for sent in facts.sent:
        late += sent.wire_id in answered
        if sent.answered:
            answered.add(sent.wire_id)
    return late


def xcom_check(sizes: Mapping[str, int]) -> Check:
    """Check that XCom carries ids and counts only.

    :param sizes: task id -> bytes of all its XComs as JSON.
    """
    largest = max(sizes.values(), default=0)
    return Check(
        "XCom of every task is small",
        largest < XCOM_BYTES,
        f"the largest has {largest} of {XCOM_BYTES} bytes",
    )


def all_hold(found: Iterable[Check]) -> bool:
    """Whether every check holds."""
    return all(check.holds for check in found)


def _by_round(facts: Facts) -> str:
    sizes: dict[int, list[int]] = {}
    for batch in facts.batches:
        sizes.setdefault(batch.round, []).append(batch.requests)
    return ", ".join(f"round {n}: {' + '.join(map(str, counts))}" for n, counts in sorted(sizes.items()))


def _twice(counts: Counter[str]) -> int:
    return sum(count > 1 for count in counts.values())


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
