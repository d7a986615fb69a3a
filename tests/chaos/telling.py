"""Which schedules tell a mutant from the engine."""

from __future__ import annotations

from tests.chaos.protocols import PROTOCOLS

#: Mutant -> directed schedules it should not survive; each is played under several numbers.
_TELLING = {
    "no_find": ("create lost_reply", "kill submit.after_create"),
    "no_lease": ("suspended within its lease",),
    "token_without_attempt": ("queue_full, then a lost reply",),
    "stage_again": ("a killed try and a source that changed",),
    "count_alone": ("a lost reply beside strangers",),
}
#: Mutant -> the protocol over which it is wrong; the others are over each.
_PROTOCOL_OF = {"count_alone": "anthropic"}


def telling(mutant: str, number: int) -> list[str]:
    """Return names of schedules for a mutant, about ``number`` of them."""
    faults = _TELLING[mutant]
    return [f"{faults[n % len(faults)]}#{n}" for n in range(number)]


def protocol_of(mutant: str | None) -> str:
    """Return the protocol over which a mutant is played."""
    return _PROTOCOL_OF.get(mutant or "", PROTOCOLS[0])
