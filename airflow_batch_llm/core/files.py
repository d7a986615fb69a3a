"""Where a job's files are and how their lines are read and written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeVar

import msgspec

from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.model import Batch, Outcome, Request
from airflow_batch_llm.core.ports import FileInfo, Workspace
from airflow_batch_llm.exceptions import WorkspaceError

T = TypeVar("T")

_requests = msgspec.json.Decoder(Request)
_outcomes = msgspec.json.Decoder(Outcome)
_encoder = msgspec.json.Encoder()


class Member(msgspec.Struct, omit_defaults=True):
    """One line of ``rows.jsonl``: a row of the source as read; ``row`` is absent for ready-made requests."""

    line: int
    custom_id: str
    wire_id: str
    row: Any = None
    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}


class Refusal(msgspec.Struct, omit_defaults=True):
    """One line of ``refused.jsonl``: a row that never became a request of a batch.

    :param message: what the provider's protocol has no place for; it may name a value of the row, so that it
        goes to the dead-letter table only.
    """

    custom_id: str
    wire_id: str
    verdict: str
    code: str
    line: int = 0
    key: dict[str, Any] = {}
    message: str = ""


_members = msgspec.json.Decoder(Member)
_refusals = msgspec.json.Decoder(Refusal)


class _Ids(msgspec.Struct):
    """The part of a member that accounting needs."""

    custom_id: str
    wire_id: str


_ids = msgspec.json.Decoder(_Ids)


class Columns(msgspec.Struct, omit_defaults=True):
    """What of a row stands beside its answer: key columns and carried ones."""

    key: dict[str, Any] = {}
    carry: dict[str, Any] = {}


class MemberColumns(Columns, omit_defaults=True):
    """The part of a member that stands beside its answer."""

    wire_id: str = ""

    @property
    def columns(self) -> Columns:
        """Return the columns alone."""
        return Columns(self.key, self.carry)


_columns = msgspec.json.Decoder(MemberColumns)


#: How the id of a row begins that was erased; the digest of the id follows.
ERASED = "erased:"
_ERASED = re.compile(rf"{ERASED}[0-9a-f]{{64}}")


def is_erased(custom_id: str) -> bool:
    """Say whether an id stands for a row that was erased: it has neither request nor answer any more."""
    return custom_id.startswith(ERASED) and _ERASED.fullmatch(custom_id) is not None


def encode_line(value: msgspec.Struct) -> bytes:
    """Encode one line with its 0x0A."""
    return _encoder.encode(value) + b"\n"


def plan_path(root: str, plan_id: str) -> str:
    """Return the folder of a plan."""
    return f"{root}/plan-{plan_id}"


def begin_plan(workspace: Workspace, root: str, plan_id: str, revision: int, round_: int) -> None:
    """Note in a plan's folder what it is for, before anything else is in it.

    What a process that dies has half written is hidden; by this note its folder is found and removed.
    """
    note = {"version": 1, "revision": revision, "round": round_}
    workspace.put(f"{plan_path(root, plan_id)}/plan.json", _encoder.encode(note))


def plan_revision(workspace: Workspace, root: str, plan_id: str) -> int:
    """Return the revision that a plan was begun for."""
    with workspace.open(f"{plan_path(root, plan_id)}/plan.json") as file:
        return int(msgspec.json.decode(file.read())["revision"])


def rows_path(root: str, plan_id: str) -> str:
    """Return the source rows of a plan."""
    return f"{plan_path(root, plan_id)}/rows.jsonl"


def refused_path(root: str, plan_id: str) -> str:
    """Return the rows of a plan that could not be sent."""
    return f"{plan_path(root, plan_id)}/refused.jsonl"


def plan_job_path(root: str, plan_id: str) -> str:
    """Return what was asked, as pinned with the plan."""
    return f"{plan_path(root, plan_id)}/job.json"


def job_path(root: str) -> str:
    """Return what was asked, for people: a copy of the newest plan's."""
    return f"{root}/job.json"


def batch_folder(root: str, batch: Batch) -> str:
    """Return the folder of what came back for a batch."""
    return f"{root}/batch/{batch.batch_id}"


def raw_path(root: str, batch: Batch, kind: str) -> str:
    """Return the provider's bytes, as received."""
    return f"{batch_folder(root, batch)}/raw/{kind}.jsonl"


def raw_entry(root: str, path: str, kind: str, file_id: str, info: FileInfo) -> dict[str, Any]:
    """Return what the ledger says of a raw file.

    :param file_id: whose copy it is at the provider; "" where that is not known.
    """
    name = path.removeprefix(f"{root}/")
    return {"kind": kind, "file_id": file_id, "path": name, "bytes": info.size, "sha256": info.sha256}


def outcomes_path(root: str, batch: Batch, sha256: str) -> str:
    """Return the outcomes of a batch, one per request, in request order.

    The digest stands in the name: judging again, or twice at once, never overwrites what is read.
    """
    return f"{batch_folder(root, batch)}/outcomes-{sha256[:16]}.jsonl"


def results_path(root: str, revision: int) -> str:
    """Return the folder of published answers."""
    return f"{root}/results/{revision}"


def iter_requests(workspace: Workspace, root: str, batch: Batch) -> Iterator[Request]:
    """Yield a batch's requests, checked against the ledger's size and digest."""
    return iter_requests_as(_requests, workspace, root, batch)


def iter_requests_as(
    decoder: msgspec.json.Decoder[T], workspace: Workspace, root: str, batch: Batch
) -> Iterator[T]:
    """Yield as much of a batch's requests as the decoder's type has fields for."""
    with workspace.open_checked(f"{root}/{batch.path}", batch.bytes, batch.sha256) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield decoder.decode(line)


def iter_outcomes(workspace: Workspace, root: str, batch: Batch) -> Iterator[Outcome]:
    """Yield the outcomes of a reconciled batch in request order, checked against the ledger's digest.

    :raises WorkspaceError: they are not what the ledger says (told when the end is reached).
    """
    expected = batch.outcomes_sha256 or ""
    path = outcomes_path(root, batch, expected)
    digest = hashlib.sha256()
    with workspace.open(path) as file:
        for _, line in iter_lines(_digested(file, digest)):
            yield _outcomes.decode(line)
    if digest.hexdigest() != expected:
        raise WorkspaceError(f"{workspace.url(path)} is not what the ledger says it is: its SHA-256 differs")


def _digested(file: BinaryIO, digest: Any) -> Iterator[bytes]:
    for chunk in read_chunks(file):
        digest.update(chunk)
        yield chunk


def iter_members(workspace: Workspace, root: str, plan_id: str) -> Iterator[Member]:
    """Yield every row of a plan."""
    with workspace.open(rows_path(root, plan_id)) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield _members.decode(line)


def iter_member_ids(workspace: Workspace, root: str, plan_id: str) -> Iterator[tuple[str, str]]:
    """Yield (custom_id, wire id) of every row of a plan."""
    with workspace.open(rows_path(root, plan_id)) as file:
        for _, line in iter_lines(read_chunks(file)):
            ids = _ids.decode(line)
            yield ids.custom_id, ids.wire_id


def iter_member_columns(workspace: Workspace, root: str, plan_id: str) -> Iterator[MemberColumns]:
    """Yield wire id, key columns and carried columns of every row of a plan."""
    with workspace.open(rows_path(root, plan_id)) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield _columns.decode(line)


def iter_refusals(workspace: Workspace, root: str, plan_id: str) -> Iterator[Refusal]:
    """Yield the rows of a plan that could not be sent."""
    with workspace.open(refused_path(root, plan_id)) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield _refusals.decode(line)
