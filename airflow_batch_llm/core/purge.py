"""purge: the contents of a job go, what happened stays.

The job is marked first, so that nobody sends or publishes from files that are about to go; then the files
go, one after the other; then the mark says that it is done. After a crash the same purge, run again, does
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_batch_llm.core.by_hand import Declined
from airflow_batch_llm.core.files import Member, Refusal, encode_line, iter_outcomes, outcomes_path
from airflow_batch_llm.core.jsonl import dumps_canonical, iter_lines, read_chunks
from airflow_batch_llm.core.judging import outcomes_file
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState, Outcome, Place
from airflow_batch_llm.core.places import is_it, place_at, what_moved
from airflow_batch_llm.core.ports import Backend, Workspace
from airflow_batch_llm.core.publish import MANIFEST, read_manifest
from airflow_batch_llm.core.retention import PURGED, Part, done_parts, noted_purge
from airflow_batch_llm.exceptions import BatchLLMError, ConfigurationError, NotFound

#: Everything.
ALL = frozenset(Part)
#: Top files of a plan's folder that stay: what was asked for (``job.json``, ``plan.json``) and the ids.
_PLAN_KEEPS = frozenset({"job.json", "plan.json", "rows.jsonl", "refused.jsonl"})
#: A provider may be at work on these, or has not been read.
_AT_WORK = (BatchState.SUBMITTING, BatchState.SUBMITTED, BatchState.ENDED)


@dataclass
class Purged:
    """What a purge of a job came to.

    :param parts: what was purged now.
    :param files: files deleted or stripped.
    :param letters: dead letters whose message was emptied.
    :param answers: answers that later jobs would have taken.
    :param provider_files: files deleted at the provider, or gone already.
    :param failed: what could not be deleted at the provider: file id -> error code.
    """

    parts: frozenset[Part] = frozenset()
    files: int = 0
    letters: int = 0
    answers: int = 0
    provider_files: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def refuse_unsettled(ledger: Ledger, job: Job, *, force: bool = False) -> None:
    """See that nothing is under way in a job.

    :param force: let a halted job pass that has nothing at its provider. It cannot go on afterwards.
    :raises Declined: something is, or may be.
    """
    if job.state is JobState.SETTLED:
        for batch in ledger.batches(job.job_id, states=[BatchState.ENDED]):
            raise Declined(
                f"results of batch {batch.batch_id} were handed in after its job had settled, and were not "
                "read yet: clear the dead_letter task first"
            )
        return
    if job.state is not JobState.HALTED:
        raise Declined(f"job {job.job_id} is {job.state}: purge it when it has settled")
    if not force:
        raise Declined(
            f"job {job.job_id} is halted ({job.halt_code}): let it settle after a resume or accept; or use "
            "--force, after which it can never go on"
        )
    out = ledger.batches(job.job_id, states=_AT_WORK)
    if out:
        raise Declined(
            f"job {job.job_id} is halted, and what its batch {out[0].batch_id} ({out[0].state}) was paid for "
            "has not been read. Accept the job first"
        )


def what_is_left(ledger: Ledger, workspace: Workspace, job: Job, parts: Collection[Part]) -> Purged:
    """Say what a purge would come to, without doing anything."""
    left = frozenset(parts) - done_parts(job)
    listed = list(_doomed(workspace, workspace.job_root(job.key), left))
    batches = ledger.batches(job.job_id)
    return Purged(
        parts=left,
        files=len(listed),
        provider_files=len(_file_ids(batches)) if Part.PROVIDER_FILES in left else 0,
    )


async def purge(
    ledger: Ledger,
    workspace: Workspace,
    job: Job,
    parts: Collection[Part],
    *,
    actor: str,
    reason: str,
    backend_of: Callable[[str], Backend],
    force: bool = False,
    fault: Callable[[str], None] = lambda point: None,
) -> Purged:
    """Purge parts of a job; those that are done already are passed over.

    :param backend_of: opens the backend of a connection; called for ``provider_files`` only.
    :param force: see :func:`refuse_unsettled`.
    :raises Declined: the job is not settled, or was changed at this moment.
    """
    refuse_unsettled(ledger, job, force=force)
    left = frozenset(parts) - done_parts(job)
    result = Purged(left)
    if not left:
        return result
    root = workspace.job_root(job.key)
    # Listed before the mark: the mark proves that nobody has begun a new plan since.
    files = [*_doomed(workspace, root, left), *workspace.leftovers(root)]
    begun = _note(ledger, job, left, "purge_begun", done=False, actor=actor, reason=reason)
    fault("purge.begun")
    batches = ledger.batches(job.job_id)
    if left & {Part.WORKSPACE, Part.DEAD_LETTERS}:
        for batch in batches:
            result.files += _strip_outcomes(ledger, workspace, root, batch)
            fault("purge.outcomes")
    if Part.DEAD_LETTERS in left:
        result.letters = ledger.forget_messages(job.job_id)
    if left & {Part.RAW, Part.WORKSPACE}:
        result.answers = ledger.forget_answers(job_id=job.job_id)
    for path in files:
        result.files += _take_out(workspace, root, path)
        fault("purge.file")
    for path in _published_meanwhile(workspace, root, job, files, left):
        result.files += _take_out(workspace, root, path)
    if Part.PROVIDER_FILES in left:
        result.provider_files, result.failed = await delete_at_provider(batches, backend_of)
    done = left - {Part.PROVIDER_FILES} if result.failed else left
    _note(ledger, begun, done, "purged", done=True, actor=actor, reason=reason)
    result.parts = done
    return result


def _note(
    ledger: Ledger, job: Job, parts: Collection[Part], action: str, *, done: bool, actor: str, reason: str
) -> Job:
    seen = {PURGED: noted_purge(job, parts, done=done)}
    told = f"{', '.join(sorted(parts))}: {reason}"
    noted = ledger.note_purge(job, action, seen=seen, actor=actor, reason=told)
    if noted is None:
        raise Declined(f"job {job.job_id} was changed at this moment; look at it again")
    return noted


# -- the workspace ---------------------------------------------------------------------------------
def _doomed(workspace: Workspace, root: str, parts: Collection[Part]) -> Iterator[str]:
    """Yield the paths of files that are deleted or stripped of their contents."""
    raw = {Part.RAW, Part.WORKSPACE} & set(parts)
    for path in workspace.list(root):
        top, _, rest = path.removeprefix(f"{root}/").partition("/")
        if top == "batch":
            doomed = bool(raw) and rest.split("/")[1:2] == ["raw"]
        else:
            plans = top.startswith("plan-") and rest not in ("job.json", "plan.json")
            doomed = Part.WORKSPACE in parts and (plans or top == "results")
        if doomed:
            yield path


def _published_meanwhile(
    workspace: Workspace, root: str, job: Job, before: Collection[str], parts: Collection[Part]
) -> list[str]:
    """Return results that a task has written which was at work when the job was marked."""
    known = set(before)
    revisions = {str(number) for number in range(1, job.revision + 1)}
    return [
        path
        for path in _doomed(workspace, root, parts)
        if path not in known
        and path.startswith(f"{root}/results/")
        and path.removeprefix(f"{root}/results/").partition("/")[0] in revisions
    ]


def _take_out(workspace: Workspace, root: str, path: str) -> int:
    """Delete a file, or strip it of what it holds of rows; returns 1 where there was anything to do."""
    top, _, rest = path.removeprefix(f"{root}/").partition("/")
    if top.startswith("plan-") and rest in _PLAN_KEEPS:
        return _strip_lines(workspace, path)
    if top == "results" and path.endswith(f"/{MANIFEST}"):
        return _mark_manifest(workspace, path.removesuffix(f"/{MANIFEST}"))
    workspace.delete_tree(path)
    return 1


def _strip_lines(workspace: Workspace, path: str) -> int:
    """Leave ids and verdicts in ``rows.jsonl`` and ``refused.jsonl``."""
    decode: Any = _refusals.decode if path.endswith("/refused.jsonl") else _members.decode
    with workspace.open(path) as file, workspace.writer(path) as out:
        for _, line in iter_lines(read_chunks(file)):
            out.write(encode_line(_bare(decode(line))))
    return 1


_members = msgspec.json.Decoder(Member)
_refusals = msgspec.json.Decoder(Refusal)


def _bare(line: Member | Refusal) -> Member | Refusal:
    if isinstance(line, Refusal):
        return Refusal(line.custom_id, line.wire_id, line.verdict, line.code, line.line)
    return Member(line.line, line.custom_id, line.wire_id)


def _mark_manifest(workspace: Workspace, folder: str) -> int:
    """Say in the manifest that its parts are gone; their digests stay."""
    manifest = read_manifest(workspace, folder)
    if manifest.get("purged"):
        return 0
    workspace.put(f"{folder}/{MANIFEST}", msgspec.json.format(dumps_canonical({**manifest, "purged": True})))
    return 1


def _strip_outcomes(ledger: Ledger, workspace: Workspace, root: str, batch: Batch) -> int:
    """Take what the provider said out of a batch's outcomes; verdicts, codes and usage stay."""
    if batch.outcomes_sha256 is None:
        return 0
    written = rewrite_outcomes(
        ledger, workspace, root, batch, lambda o: msgspec.structs.replace(o, message="", text="")
    )
    return delete_other_outcomes(workspace, root, written) if written is not None else 0


def rewrite_outcomes(
    ledger: Ledger,
    workspace: Workspace,
    root: str,
    batch: Batch,
    change: Callable[[Outcome], Outcome],
    *,
    files: tuple[Any, ...] | None = None,
) -> Batch:
    """Write a batch's outcomes changed, and name them in the ledger; the file before is left.

    :param files: raw files that the batch names from now on; None for those it does.
    :raises Declined: the batch was judged again at this moment.
    """
    with outcomes_file(workspace, root, batch) as out:
        for outcome in iter_outcomes(workspace, root, batch):
            out.write(encode_line(change(outcome)))
    written = ledger.rewrite_outcomes(
        batch, outcomes_sha256=out.sha256, files=batch.files if files is None else files
    )
    if written is None:
        raise Declined(f"batch {batch.batch_id} was changed at this moment; look at it again")
    return written


def delete_other_outcomes(workspace: Workspace, root: str, batch: Batch) -> int:
    """Delete outcomes of a batch that the ledger does not name (any more); returns 1."""
    named = outcomes_path(root, batch, batch.outcomes_sha256 or "")
    folder = named.rpartition("/")[0]
    for path in workspace.list(folder):
        if path.startswith(f"{folder}/outcomes-") and path != named:
            workspace.delete_tree(path)
    return 1


# -- the provider ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Sent:
    """Batches that were sent to one place with one connection."""

    conn_id: str
    provider: str
    place: Place | None


def _by_place(batches: Collection[Batch]) -> dict[_Sent, list[Batch]]:
    sent: dict[_Sent, list[Batch]] = {}
    for batch in batches:
        sent.setdefault(_Sent(batch.conn_id, batch.provider, batch.place), []).append(batch)
    return sent


def _file_ids(batches: Collection[Batch]) -> set[str]:
    """Return the ids of the files that batches have, or had, at their provider."""
    ids = (file_id for b in batches for file_id in (b.input_file_id, *(f["file_id"] for f in b.files)))
    return {str(file_id) for file_id in ids if file_id}


async def delete_at_provider(
    batches: Collection[Batch], backend_of: Callable[[str], Backend]
) -> tuple[int, dict[str, str]]:
    """Delete uploads and results; one that is gone is fine.

    Returns how many were, and what could not be deleted: file id -> error code.
    """
    deleted = 0
    failed: dict[str, str] = {}
    for sent, there in _by_place(batches).items():
        file_ids = sorted(_file_ids(there))
        if not file_ids:
            continue
        try:
            backend = await _open(sent, there, backend_of)
        except BatchLLMError as error:
            failed |= dict.fromkeys(file_ids, error.code)
            continue
        for file_id in file_ids:
            try:
                await backend.delete_file(file_id)
            except BatchLLMError as error:
                failed[file_id] = error.code
            else:
                deleted += 1
    return deleted, failed


async def _open(sent: _Sent, batches: Collection[Batch], backend_of: Callable[[str], Backend]) -> Backend:
    """Return the backend of the connection with which batches were sent.

    :raises ConfigurationError: it leads to another provider, server or account by now. There, each id is
        unknown, which would count as deleted.
    """
    backend = backend_of(sent.conn_id)
    if backend.provider != sent.provider:
        raise ConfigurationError(f"connection {sent.conn_id!r} names another provider by now")
    what = what_moved(sent.place, place_at(backend))
    if what is not None and not await _shows_one(backend, batches):
        raise ConfigurationError(f"connection {sent.conn_id!r} was changed since: {what}")
    return backend


async def _shows_one(backend: Backend, batches: Collection[Batch]) -> bool:
    """Say whether any of the batches is shown: then it is their account, with a new key or a new name."""
    for batch in batches:
        if batch.provider_batch_id is None:
            continue
        try:
            remote = await backend.retrieve(batch.provider_batch_id)
        except NotFound:
            continue
        if is_it(backend, batch, remote):
            return True
    return False
