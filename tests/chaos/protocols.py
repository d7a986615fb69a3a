"""What differs between the protocols: faults that cannot happen over one, and those that only one has."""

from __future__ import annotations

import random
from functools import partial

from tests.chaos.plans import KILL, SUSPEND, At, Plan, Shape

PROTOCOLS = ("openai", "azure", "anthropic", "gemini", "mistral")
#: Shows no marks: batches that may be ours are known by time, count and their rows.
UNMARKED = frozenset({"anthropic"})
#: A fault that the director tells apart from a mere suspension.
SENT_LATE = "sent past its lease by a process that died then"
#: Ask whether an upload can be used; over the others that is no call.
ASK_FOR_UPLOADS = frozenset({"azure", "gemini"})
#: Kills at these can only happen where the provider refuses lines before there is a batch, or has no marks.
_REFUSED, _DOUBT = "kill refused.", "kill doubt."
#: Protocol -> beginnings of the names of faults that cannot happen over it.
_LACKS: dict[str, tuple[str, ...]] = {
    "openai": (_REFUSED, _DOUBT),
    "azure": (_REFUSED, _DOUBT),
    # Nothing is uploaded, no file is described or deleted, results are always behind one address.
    "anthropic": (
        *("kill submit.before_upload", "kill submit.after_upload", "upload ", "delete error"),
        *("file size error", "results absent file id"),
    ),
    "gemini": (_DOUBT, "results absent file id"),
    "mistral": (_DOUBT,),
}


def can_happen(fault: str, protocol: str) -> bool:
    """Say whether a fault of the catalogue can happen over a protocol at all."""
    return not fault.startswith(_LACKS[protocol])


# -- quirks ------------------------------------------------------------------------------------------
def _quirk(plan: Plan, rng: random.Random, *, label: str, **values: object) -> None:
    """Set members of the scenario; lists stand for what is chosen from."""
    chosen = {name: rng.choice(value) if isinstance(value, list) else value for name, value in values.items()}
    plan.quirks |= chosen
    plan.labels[f"results/{label}"] = label


def _gemini_quirk(plan: Plan, rng: random.Random, *, label: str, **values: object) -> None:
    plan.quirks["gemini"] = {**plan.quirks.get("gemini", {}), **values}
    plan.labels[f"results/{label}"] = label


def _pace_quirk(plan: Plan, rng: random.Random, *, label: str, **values: object) -> None:
    plan.pace |= {
        name: rng.choice(value) if isinstance(value, list) else value for name, value in values.items()
    }
    plan.labels[f"results/{label}"] = label


def _cancelled_results(plan: Plan, rng: random.Random, *, label: str) -> None:
    _gemini_quirk(plan, rng, label=label, cancelled_results=True)
    plan.deadline, plan.hold, plan.fails_late = "passed", True, False


def _refusals_in_lists(plan: Plan, rng: random.Random, *, label: str) -> None:
    _gemini_quirk(plan, rng, label=label, errors_in_list=True)
    rule = {"fault": "fail_validation", "line": rng.choice((1, None)), "times": 1}
    plan.add_rule("batches", "batch fail_validation", rule)


def _counts_that_move(plan: Plan, rng: random.Random, *, label: str) -> None:
    _pace_quirk(plan, rng, label=label, live_counts=True)
    plan.hold = True


def _inline(plan: Plan, rng: random.Random, *, label: str, how: str) -> None:
    plan.inline = how
    plan.labels[f"results/{label}"] = label


def strangers(plan: Plan, rng: random.Random) -> None:
    """Others use the same key: batches of every size run beside ours, and one of ours is in doubt."""
    plan.strangers, plan.hold = True, True
    lose_a_reply(plan, rng, took_effect=rng.random() < 0.5)


def _late_and_silent(plan: Plan, rng: random.Random) -> None:
    """A process posts after its lease and dies before it can tell; no mark shows whose batch that is."""
    wake_after = rng.randint(5, 9)
    plan.ats.append(At("submit.before_create", 1, SUSPEND, wake_after, dies_at="submit.after_create"))
    plan.hold = True


def lose_a_reply(plan: Plan, rng: random.Random, *, took_effect: bool) -> None:
    """Let a create call be in doubt, that took effect or did not."""
    if took_effect and rng.random() < 0.5:
        plan.ats.append(At("submit.after_create", rng.choice((1, 1, 2)), KILL))
        return
    fault = "lost_reply" if took_effect else "dropped"
    plan.add_rule("calls", f"create {fault}", {"on": "create", "fault": fault, "times": 1})


_UNKNOWN_STATUS = {"statuses": [("warming_up",), ("warming_up", "BATCH_STATE_NEW")]}
_NOT_READY = {"files_ready_after": [1, 1, 2]}


def _named(shape: object, label: str, **values: object) -> dict[str, Shape]:
    return {label: partial(shape, label=label, **values)}  # type: ignore[call-overload]


_STATUS = _named(_pace_quirk, "statuses that nobody knows", **_UNKNOWN_STATUS)
_READY = _named(_quirk, "uploads that are not ready at once", **_NOT_READY)
_INLINE = _named(_inline, "requests that go along with the create call", how="always") | _named(
    _inline, "a connection that changes between the two", how="changes"
)
#: Protocol -> faults of its own. OpenAI has none: its schedules stay what they are.
QUIRKS: dict[str, dict[str, Shape]] = {
    "openai": {},
    "azure": _STATUS | _READY | _named(_quirk, "types that drift", type_drift=True),
    "anthropic": {
        "strangers with the same key": strangers,
        SENT_LATE: _late_and_silent,
        **_STATUS,
        **_named(_counts_that_move, "counts that move"),
    },
    "gemini": {
        **_STATUS,
        **_READY,
        **_INLINE,
        **_named(_gemini_quirk, "states by their other names", job_states=True),
        **_named(_gemini_quirk, "failed rows with a status", row_errors="status"),
        **_named(_cancelled_results, "answers of a cancelled batch"),
        **_named(_refusals_in_lists, "refusals in a list"),
    },
    "mistral": {
        **_STATUS,
        **_INLINE,
        **_named(_pace_quirk, "reads that lag behind the create call", hidden=[1, 2, 4]),
    },
}
