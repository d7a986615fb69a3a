"""Every fault there is, each with what a schedule must look like for it to happen."""

from __future__ import annotations

import random
from functools import partial
from typing import get_args

from airflow_batch_llm.server.scenario import RowFault
from tests.chaos.breakage import OWN_POINTS
from tests.chaos.plans import (
    DISK_BROKEN,
    DISK_FULL,
    KILL,
    RESET_UPLOAD,
    SUSPEND,
    SUSPEND_BRIEFLY,
    At,
    Plan,
    Shape,
)
from tests.chaos.protocols import QUIRKS, can_happen, lose_a_reply
from tests.integration.engine.kills import fault_points

#: Between the intent and the request: who stands still here may post after its lease.
LEASED_POINTS = ("submit.after_intent", "submit.before_create")
#: How often each of the harness's own points is met in a job, about.
_OFTEN = {"ledger": 24, "request": 16, "workspace": 14, "sink": 1}
_CALLS = ("create", "upload", "retrieve", "list", "cancel", "download")
_CALL_FAULTS = ("lost_reply", "dropped", "timeout", "error")
_ROW_FAULTS: tuple[str, ...] = get_args(RowFault)
_ODD_CALLS: dict[str, dict[str, object]] = {
    "create 429": {"on": "create", "fault": "error", "status": 429, "retry_after": 0.1},
    "create 401": {"on": "create", "fault": "error", "status": 401},
    "retrieve 404": {"on": "retrieve", "fault": "error", "status": 404},
    "delete error": {"on": "delete", "fault": "error", "status": 500},
    "file size error": {"on": "file", "fault": "error", "status": 503},
    "download reset": {"on": "download", "fault": "reset"},
    "download cut": {"on": "download", "fault": "cut"},
}
_RESULTS: dict[str, dict[str, object]] = {
    "late": {"late": 2},
    "shuffled": {"shuffle": 7},
    "repeated rows": {"repeat": 2},
    "foreign rows": {"foreign": 2},
    "rows without id": {"no_id": 1},
    "odd bytes": {"blank_lines": 1, "crlf": True, "bom": True, "no_last_newline": True},
    "half a row at the end": {"broken_last_line": True},
}
WAITING_ACTS = (
    "retry while it waits",
    "clear while it waits",
    "mark success while it waits",
    "mark failed while it waits",
    "mark failed with cancel_on_kill",
    "delete the run while it waits",
    "the same job twice at once",
)
SETTLED_ACTS = (
    "clear after success",
    "clear after red",
    "clear after a prompt changed",
    "clear after a row was added",
    "clear after a row was removed",
    "clear after the model changed",
    "clear after the schema changed",
    "clear submit alone",
    "clear reconcile alone",
    "clear retry alone",
    "clear dead_letter alone",
    "clear with rerun failed",
    "clear with rerun fresh",
    "delete the run, start again",
    "backfill reprocesses the run",
)
TRIGGERS = ("trigger restarted", "trigger twice", "deferral time-out")


# -- task processes ----------------------------------------------------------------------------------
def _kill(plan: Plan, rng: random.Random, *, point: str) -> None:
    if point == "submit.after_duplicate":
        wake_after = rng.randint(5, 9)
        plan.ats.append(At("submit.before_create", 1, SUSPEND, wake_after, dies_at=point))
        plan.hold = True
        return
    _make_fit(plan, rng, point)
    plan.ats.append(At(point, _nth(rng, point), KILL))


def _suspend(plan: Plan, rng: random.Random, *, points: tuple[str, ...], past_lease: bool) -> None:
    point = rng.choice(points)
    _make_fit(plan, rng, point)
    nth = 1 if past_lease else _nth(rng, point)
    plan.ats.append(At(point, nth, SUSPEND, rng.randint(5, 9) if past_lease else rng.randint(1, 6)))


def _suspend_briefly(plan: Plan, rng: random.Random) -> None:
    plan.ats.append(At(rng.choice(LEASED_POINTS), rng.choice((1, 1, 2)), SUSPEND_BRIEFLY))


def _make_fit(plan: Plan, rng: random.Random, point: str) -> None:
    """See that the point is met."""
    if point.startswith("round."):
        plan.add_rule("rows", "row server_error", _row_rule(plan, rng, "server_error", times=1))
    elif point == "rejudge.before_reconciled":
        _settled_act(plan, rng, act="clear reconcile alone")
    elif point.startswith("hold."):
        _odd_call(plan, rng, label="create 401", rule=_ODD_CALLS["create 401"])
    elif point.startswith("refused."):
        label = "batch fail_validation, line named"
        _batch(plan, rng, label=label, rule={"fault": "fail_validation", "line": 1})
    elif point.startswith("doubt."):
        # Alone it is adopted, and is ours or, where the call had no effect, a stranger's.
        plan.hold, plan.strangers = True, point.endswith("disowned")
        lose_a_reply(plan, rng, took_effect=not plan.strangers)
    elif point == "observe.before_cancel":
        _deadline(plan, rng, which="passed")
        plan.fails_late = False
    elif point == "deadline.before_given_up":
        _deadline(plan, rng, which="passed")
        plan.fails_late = False
        rule = {"on": "create", "fault": "error", "status": 429, "retry_after": 0.3, "times": 3, "skip": 1}
        plan.add_rule("calls", "create 429", rule)
        plan.per_batch = max(1, plan.rows // 2)


def _nth(rng: random.Random, point: str) -> int:
    often = _OFTEN.get(point.partition(".")[0])
    if point in OWN_POINTS and often is not None:
        return rng.randint(1, often)
    return (
        rng.choice((1, 1, 1, 2))
        if not point.startswith(("stage", "rejudge", "reuse", "settle", "sink"))
        else 1
    )


def _outage(plan: Plan, rng: random.Random, *, what: str) -> None:
    point = rng.choice(
        ("ledger.before_write", "request.before", "submit.before_create", "settle.before_sink")
    )
    plan.ats.append(At(point, _nth(rng, point), what))


def _disk(plan: Plan, rng: random.Random, *, what: str) -> None:
    point = "workspace.half_written" if what == DISK_FULL else "workspace.before_write"
    plan.ats.append(At(point, _nth(rng, point), what))


def _reset_upload(plan: Plan, rng: random.Random) -> None:
    plan.ats.append(At("submit.before_upload", rng.choice((1, 2)), RESET_UPLOAD))


# -- the provider ------------------------------------------------------------------------------------
def _row(plan: Plan, rng: random.Random, *, fault: str) -> None:
    times = rng.choice((1, 1, 2, None))
    if fault == "invalid_json":
        plan.structured = True  # any text will do as free text
    plan.add_rule("rows", f"row {fault}", _row_rule(plan, rng, fault, times=times))


def _row_rule(plan: Plan, rng: random.Random, fault: str, *, times: int | None) -> dict[str, object]:
    row = rng.randrange(plan.rows)
    return {"match": {"contains": f"number {row}."}, "fault": fault, "times": times}


def _batch(plan: Plan, rng: random.Random, *, label: str, rule: dict[str, object]) -> None:
    plan.add_rule("batches", label, {**rule, "times": rng.choice((1, 1, 2))})


def _call(plan: Plan, rng: random.Random, *, on: str, fault: str) -> None:
    rule: dict[str, object] = {"on": on, "fault": fault, "times": rng.choice((1, 1, 2))}
    if fault == "error":
        rule["status"] = rng.choice((500, 502, 503))
        rule["html"] = rng.random() < 0.3
    if on == "cancel":
        _deadline(plan, rng, which="passed")
        plan.fails_late = False
    elif on == "list":
        point = rng.choice(("submit.after_create", "submit.after_intent"))
        plan.ats.append(At(point, 1, KILL))
    else:
        rule["skip"] = rng.choice((0, 0, 1))
    plan.add_rule("calls", f"{on} {fault}", rule)


def _odd_call(plan: Plan, rng: random.Random, *, label: str, rule: dict[str, object]) -> None:
    if rule.get("status") == 404:
        plan.gone_after = 6.0
    plan.add_rule("calls", label, {**rule, "times": rng.choice((1, 2))})


def _result(plan: Plan, rng: random.Random, *, how: str) -> None:
    plan.results |= _RESULTS[how]
    plan.labels[f"results/{how}"] = f"results {how}"
    if how == "late":
        plan.gone_after = 6.0


def _absent(plan: Plan, rng: random.Random) -> None:
    plan.absent_file_id = rng.choice(("empty", "absent", "object", "empty_file"))
    plan.labels["results/absent"] = "results absent file id"


# -- waiting and people ------------------------------------------------------------------------------
def _trigger(plan: Plan, rng: random.Random, *, fault: str) -> None:
    plan.triggers.append(fault)
    plan.hold = True


def _deadline(plan: Plan, rng: random.Random, *, which: str) -> None:
    plan.deadline = which
    plan.hold = True


def _waiting_act(plan: Plan, rng: random.Random, *, act: str) -> None:
    plan.acts.append(act)
    plan.hold = True


def _settled_act(plan: Plan, rng: random.Random, *, act: str) -> None:
    plan.acts.append(act)
    if act == "clear retry alone":
        # A row that has used up its attempts when the job settles.
        plan.max_rounds = 1
        plan.add_rule("rows", "row server_error", _row_rule(plan, rng, "server_error", times=2))
    elif act in ("clear after red", "clear with rerun failed"):
        plan.add_rule("rows", "row bad_request", _row_rule(plan, rng, "bad_request", times=1))
    elif act == "clear reconcile alone":
        plan.strict = True


def _set(plan: Plan, rng: random.Random, *, name: str, value: object) -> None:
    setattr(plan, name, value)


def catalogue(
    ledger_outages: tuple[str, ...], *, reuse: bool = False, protocol: str = "openai"
) -> dict[str, Shape]:
    """Return every fault by name, for a ledger with these outages and a protocol.

    :param reuse: jobs have ``reuse`` (in the job only: here no job asks what another has asked).
    """
    points = (point for point in fault_points() if not point.startswith("reuse."))
    engine = (*points, *(("reuse.before_recorded",) if reuse else ()))
    found: dict[str, Shape] = {f"kill {point}": partial(_kill, point=point) for point in engine + OWN_POINTS}
    elsewhere = tuple(
        point
        for point in engine
        if point not in (*LEASED_POINTS, "submit.after_duplicate") and can_happen(f"kill {point}", protocol)
    )
    found["suspended past its lease"] = partial(_suspend, points=LEASED_POINTS, past_lease=True)
    found["suspended within its lease"] = _suspend_briefly
    found["suspended at another point"] = partial(_suspend, points=elsewhere, past_lease=False)
    found |= {f"ledger {how}": partial(_outage, what=f"ledger {how}") for how in ledger_outages}
    found |= {what: partial(_outage, what=what) for what in ("server killed", "server restarted")}
    found |= {what: partial(_disk, what=what) for what in (DISK_FULL, DISK_BROKEN)}
    found["upload reset"] = _reset_upload
    found |= {f"{on} {fault}": partial(_call, on=on, fault=fault) for on in _CALLS for fault in _CALL_FAULTS}
    found |= {label: partial(_odd_call, label=label, rule=rule) for label, rule in _ODD_CALLS.items()}
    found |= {f"row {fault}": partial(_row, fault=fault) for fault in _ROW_FAULTS}
    batches: dict[str, dict[str, object]] = {
        "batch expire": {"fault": "expire"},
        "batch queue_full": {"fault": "queue_full"},
        "batch fail_validation": {"fault": "fail_validation"},
        "batch fail_validation, line named": {"fault": "fail_validation", "line": 1},
    }
    found |= {label: partial(_batch, label=label, rule=rule) for label, rule in batches.items()}
    found |= {f"results {how}": partial(_result, how=how) for how in _RESULTS}
    found["results absent file id"] = _absent
    found |= {fault: partial(_trigger, fault=fault) for fault in TRIGGERS}
    found |= {f"deadline {which}": partial(_deadline, which=which) for which in ("passed", "late event")}
    found |= {act: partial(_waiting_act, act=act) for act in WAITING_ACTS}
    found |= {act: partial(_settled_act, act=act) for act in SETTLED_ACTS}
    found["the source changes with every reading"] = partial(_set, name="moving", value=True)
    found["two processes for every task"] = partial(_set, name="twice", value=True)
    found["two jobs share a connection"] = partial(_set, name="jobs", value=2)
    return {name: shape for name, shape in found.items() if can_happen(name, protocol)} | QUIRKS[protocol]


# -- what tells a wrong engine from the right one ----------------------------------------------------
def _queue_full_then_lost(plan: Plan, rng: random.Random) -> None:
    """The first attempt's batch fails before it runs, the second attempt's reply is lost."""
    plan.per_batch = plan.rows
    plan.batch_rules.insert(0, {"fault": "queue_full", "times": 1})
    plan.call_rules.insert(0, {"on": "create", "fault": "lost_reply", "times": 1, "skip": 1})


def _killed_and_changed(plan: Plan, rng: random.Random) -> None:
    """A try is killed behind its pinned plan; the next one would read another source."""
    plan.moving = True
    plan.ats.insert(0, At(rng.choice(("submit.before_upload", "submit.after_upload")), 1, KILL))


def _late_and_silent(plan: Plan, rng: random.Random) -> None:
    """A process posts long after its lease, when all is read, and dies before it can tell; the upload is
    still there, as it could not be deleted."""
    plan.call_rules.insert(0, {"on": "delete", "fault": "error", "status": 500})
    plan.ats.insert(0, At("submit.before_create", 1, SUSPEND, 40, dies_at="submit.after_create"))


def _lost_beside_strangers(plan: Plan, rng: random.Random) -> None:
    """Without marks: the reply to the first create call is lost, and others have batches of that size."""
    plan.strangers, plan.hold = True, True
    plan.call_rules.insert(0, {"on": "create", "fault": "lost_reply", "times": 1})


COMBINATIONS: dict[str, Shape] = {
    "a late post that nobody tells of": _late_and_silent,
    "queue_full, then a lost reply": _queue_full_then_lost,
    "a killed try and a source that changed": _killed_and_changed,
    "a lost reply beside strangers": _lost_beside_strangers,
}
