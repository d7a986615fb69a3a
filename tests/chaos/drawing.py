"""Draws schedules: the same seed, ledger and name always give the same plan."""

from __future__ import annotations

import random

from tests.chaos.catalogue import COMBINATIONS, SETTLED_ACTS
from tests.chaos.plans import Plan, Shape


def draw(seed: int, ledger: str, name: str, faults: dict[str, Shape]) -> Plan:
    """Return the plan of a schedule.

    :param name: a number (the catalogue's faults take turns in leading, others are drawn to it), or
        ``fault#number``: directed at that fault, with little beside it.
    """
    rng = random.Random(f"{seed}/{ledger}/{name}")
    directed, hash_, _ = name.rpartition("#")
    order = sorted(faults)
    if hash_:
        lead, more = directed, rng.choice((0, 0, 1))
    else:
        random.Random(f"{seed}/{ledger}").shuffle(order)
        lead, more = order[int(name) % len(order)], rng.choice((1, 2, 2, 3, 3, 4, 5))
    plan = Plan(name, seed, ledger, lead)
    plan.rows = rng.choice((2, 4, 5, 6, 7, 8, 9, 12, 16, 30))
    plan.per_batch = max(2, -(-plan.rows // rng.choice((1, 2, 2, 3))))
    plan.max_rounds = rng.choice((1, 2, 3))
    plan.call_retries = rng.choice((0, 0, 0, 1))
    plan.hold = rng.random() < 0.4
    plan.structured = rng.random() < 0.25
    plan.resume = rng.random() < 0.5
    plan.fails_late = rng.random() < 0.4
    (faults | COMBINATIONS)[lead](plan, rng)
    for other in rng.sample([name for name in order if name != lead], more):
        faults[other](plan, rng)
    _make_consistent(plan, rng)
    return plan


def _make_consistent(plan: Plan, rng: random.Random) -> None:
    """Take out what would ask two things of one row or one clock."""
    if plan.gone_after > 1:
        # A file that appears late cannot be told from rows that no file holds.
        for rule in plan.row_rules:
            if rule["fault"] == "missing":
                rule["fault"] = "request_timeout"
        plan.labels = {
            key: "row request_timeout" if label == "row missing" else label
            for key, label in plan.labels.items()
        }
    if plan.deadline:
        plan.moving = False
    if plan.strict and plan.structured:
        # Its judge takes text.
        plan.structured = any(rule["fault"] == "invalid_json" for rule in plan.row_rules)
        plan.strict = not plan.structured
    waiting = [act for act in plan.acts if act not in SETTLED_ACTS]
    settled = [act for act in plan.acts if act in SETTLED_ACTS]
    if plan.strict:
        # It would pay again for what the first judge refused, as documented.
        settled = [act for act in settled if act != "clear with rerun failed"]
    rng.shuffle(settled)
    plan.acts = waiting + settled
