"""What all decisions of a person have in common: how one is declined, the codes that they leave."""

from __future__ import annotations

from airflow_batch_llm.core.model import Batch, BatchState

#: In ``Job.seen``: one task does all of the job, and a clear of it carries out what was decided before.
ONE_TASK = "one_task"
#: Halt code of a job that a person stopped.
CANCELLED = "BLLM-032"
#: Code of rows that a person gave up although they may have been paid for.
ABANDONED = "abandoned"
#: Code of rows of batches that were never sent when a person accepted the job.
NEVER_SENT = "never_sent"
#: Code of rows of a lost batch when a person accepted the job.
BATCH_LOST = "batch_lost"


class Declined(Exception):
    """The decision does not fit how things stand; nothing was changed."""


class NotYet(Exception):
    """A part of the decision was carried out; the rest is for later."""


def refuse_handed_in(batch: Batch) -> None:
    """See that nobody has brought the results of the batch: then they are read, whatever else is decided.

    :raises Declined: somebody has.
    """
    if batch.state is BatchState.ENDED and batch.files:
        raise Declined(
            f"the results of batch {batch.batch_id} were handed in and are read by the job's tasks"
        )
