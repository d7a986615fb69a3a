"""Which schedules tell a mutant from the engine."""

from __future__ import annotations

#: Mutant -> directed schedules it should not survive; each is played under several numbers.
_TELLING = {
    "no_find": ("create lost_reply", "kill submit.after_create"),
    "no_lease": ("suspended within its lease",),
    "token_without_attempt": ("queue_full, then a lost reply",),
    "stage_again": ("a killed try and a source that changed",),
    "count_alone": ("strangers with the same key",),
}
#: Mutant -> the protocol over which it is wrong, where that is one without marks.
PROTOCOL_OF = {"count_alone": "anthropic"}


def telling(mutant: str, number: int) -> list[str]:
    """Return names of schedules for a mutant, about ``number`` of them."""
    faults = _TELLING[mutant]
    return [f"{faults[n % len(faults)]}#{n}" for n in range(number)]
