"""What a person decides about a job. Each decision is a compare-and-set with actor and reason in its event.

The commands come through here, and the task that settles an accepted job.
"""

from __future__ import annotations

from airflow_batch_llm.core.by_hand.accepting import (
    Acceptance,
    acceptance_of,
    accepted_halt,
    settle_accepted,
    what_runs,
)
from airflow_batch_llm.core.by_hand.adopting import adopt
from airflow_batch_llm.core.by_hand.cancelling import Cancelled, cancel
from airflow_batch_llm.core.by_hand.decisions import ABANDONED, ONE_TASK, Declined, NotYet
from airflow_batch_llm.core.by_hand.giving_up import abandon_doubt, abandon_results, abandon_running
from airflow_batch_llm.core.by_hand.handing_in import HandedIn, hand_in
from airflow_batch_llm.core.by_hand.lacking import not_to_be_had

__all__ = [
    "ABANDONED",
    "ONE_TASK",
    "Acceptance",
    "Cancelled",
    "Declined",
    "HandedIn",
    "NotYet",
    "abandon_doubt",
    "abandon_results",
    "abandon_running",
    "acceptance_of",
    "accepted_halt",
    "adopt",
    "cancel",
    "hand_in",
    "not_to_be_had",
    "settle_accepted",
    "what_runs",
]
