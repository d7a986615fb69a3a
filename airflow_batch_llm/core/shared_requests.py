"""Rows that have no request of their own: which request answers them, as its file names it."""

from __future__ import annotations

from airflow_batch_llm.core.erase_lists import listed_plans
from airflow_batch_llm.core.files import plan_revision
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.core.plan_files import iter_duplicates
from airflow_batch_llm.core.ports import RowIndex, Workspace


class SharedRequests:
    """Says which request a row was sent with.

    :param index: an empty one, for the rows that share another's request.
    """

    def __init__(self, index: RowIndex) -> None:
        self._index = index

    def add(self, workspace: Workspace, root: str, plan_id: str) -> None:
        """Take in the rows of a plan; a later one's place is taken where two plans name a row."""
        duplicates = iter_duplicates(workspace, root, plan_id)
        self._index.put(((d.wire_id, 0, 0, d.of.encode()) for d in duplicates), unless_a=-1)

    def of(self, wire_id: str) -> str:
        """Return the wire id of the request that answers a row: its own, or the one that it shares."""
        found = self._index.get(wire_id)
        return found[2].decode() if found is not None and found[2] is not None else wire_id


def all_shared_requests(workspace: Workspace, root: str, job: Job, index: RowIndex) -> SharedRequests:
    """Take in every plan that counts, the present one last: letters may be of rows that left the source."""
    shared = SharedRequests(index)
    for plan_id in sorted(listed_plans(workspace, root), key=lambda plan_id: plan_id == job.plan_id):
        if plan_revision(workspace, root, plan_id) >= job.floor_revision:
            shared.add(workspace, root, plan_id)
    return shared
