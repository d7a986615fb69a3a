"""erase: single rows go out of a job, wherever they stand; all others stay as they are.

A row's custom id becomes a digest; what it was asked, what was answered and its columns go; wire id, verdict
and usage stay, so that the job's sums still agree. Every file is written anew beside the old one, the ledger
names the new one in one transaction, and only then the old one goes. The lists of rows change last: as long
as one of them names a row, the same erasure, run again, finds it and does the rest.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.by_hand import Declined
from airflow_batch_llm.core.erase_lists import (
    ROWS,
    Lists,
    erased_id,
    instead_of,
    lines_of,
    listed_plans,
    matching_lines,
)
from airflow_batch_llm.core.files import (
    ERASED,
    batch_folder,
    encode_line,
    is_erased,
    iter_outcomes,
    iter_requests,
    outcomes_path,
    plan_path,
)
from airflow_batch_llm.core.jsonl import dumps, iter_lines, loads_lenient, read_chunks
from airflow_batch_llm.core.judging import outcomes_file
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, Job, Outcome, Request
from airflow_batch_llm.core.plan_files import DUPLICATES
from airflow_batch_llm.core.ports import Backend, Workspace
from airflow_batch_llm.core.publish import MANIFEST, read_manifest
from airflow_batch_llm.core.purge import delete_at_provider, refuse_unsettled
from airflow_batch_llm.core.retention import Part, begun_parts
from airflow_batch_llm.core.verdicts import Disposition

#: Copies a published file to another place, without the rows that have these custom ids.
DropRows = Callable[[Path, Path, Collection[str]], None]


@dataclass
class Erasure:
    """What an erasure came to in one job.

    :param rows: rows of the job; each revision that asked something else counts.
    :param failed: what could not be deleted at the provider: file id -> error code.
    """

    rows: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def find_rows(ledger: Ledger, workspace: Workspace, job: Job, custom_ids: Collection[str]) -> dict[str, str]:
    """Return wire id -> custom id of the job's rows that have one of these ids."""
    root = workspace.job_root(job.key)
    found: dict[str, str] = {}
    for plan_id in listed_plans(workspace, root):
        for line in matching_lines(workspace, f"{plan_path(root, plan_id)}/{ROWS}", custom_ids):
            found[line["wire_id"]] = line["custom_id"]
    for custom_id in custom_ids:
        for letter in ledger.find_dead_letters(job_id=job.job_id, custom_id=custom_id):
            found[letter.wire_id] = custom_id
    return found


async def erase(
    ledger: Ledger,
    workspace: Workspace,
    job: Job,
    custom_ids: Collection[str],
    *,
    actor: str,
    reason: str,
    backend_of: Callable[[str], Backend] | None,
    drop_rows: Mapping[str, DropRows],
    fault: Callable[[str], None] = lambda point: None,
) -> Erasure:
    """Erase rows from a job that has settled.

    :param backend_of: opens the backend of a connection, to delete the provider's files that hold the rows;
        None leaves them alone.
    :param drop_rows: how published files of other forms than JSON lines are rewritten, by suffix.
    :raises Declined: the job is not settled, or was changed at this moment; run it again.
    """
    refuse_unsettled(ledger, job)
    root = workspace.job_root(job.key)
    rows = find_rows(ledger, workspace, job, custom_ids)
    if not rows:
        return Erasure()
    # Listed before the mark: the mark proves that nobody has begun a new plan since.
    listed = [*workspace.list(root), *workspace.leftovers(root)]
    told = f"{len(rows)} rows: {reason}"
    marked = ledger.note_purge(job, "erase_begun", seen={}, actor=actor, reason=told)
    if marked is None:
        raise _changed(job)
    fault("erase.begun")
    work = _Erasing(ledger, workspace, root, marked, rows, drop_rows, fault)
    touched = work.batches()
    work.results()
    result = Erasure(len(rows))
    if backend_of is not None:
        _, result.failed = await delete_at_provider(touched, backend_of)
    ledger.forget_answers(job_id=job.job_id, wire_ids=list(rows))
    ledger.erase_letters(job.job_id, {custom_id: erased_id(custom_id) for custom_id in custom_ids})
    work.sweep(listed)
    fault("erase.swept")
    now = work.lists().rewrite(marked)
    if now is None or ledger.note_purge(now, "erased", seen={}, actor=actor, reason=told) is None:
        raise _changed(job)
    return result


def _changed(job: Job) -> Declined:
    return Declined(f"job {job.job_id} was changed at this moment; run it again when the job has settled")


class _Erasing:
    """One pass over the files of a job."""

    def __init__(
        self,
        ledger: Ledger,
        workspace: Workspace,
        root: str,
        job: Job,
        rows: Mapping[str, str],
        drop_rows: Mapping[str, DropRows],
        fault: Callable[[str], None],
    ) -> None:
        self._ledger, self._workspace, self._root, self._job = ledger, workspace, root, job
        self._ids = frozenset(rows.values())
        self._drop_rows, self._fault = drop_rows, fault
        purged = begun_parts(job)
        self._bare = Part.WORKSPACE in purged
        self._without_raw = self._bare or Part.RAW in purged
        self._wires, self._shared = self._with_shared(frozenset(rows))

    def _with_shared(self, rows: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the wire ids that are erased, and those of them whose request and answer other rows share.

        Among the first are rows that were erased before, and whose answer only these rows have shared since.
        """
        shared, left_behind, erased = set(), set(), set()
        folders = [plan_path(self._root, plan_id) for plan_id in listed_plans(self._workspace, self._root)]
        for folder in folders:
            for line in lines_of(self._workspace, f"{folder}/{DUPLICATES}"):
                if line["wire_id"] in rows:
                    left_behind.add(line["of"])
                elif not is_erased(line["custom_id"]):
                    shared.add(line["of"])
        for folder in folders if left_behind else ():
            for line in lines_of(self._workspace, f"{folder}/{ROWS}", ERASED):
                if is_erased(line["custom_id"]):
                    erased.add(line["wire_id"])
        wires = rows | (left_behind & erased)
        return wires, frozenset(shared & wires)

    # -- batches -------------------------------------------------------------------------------------
    def batches(self) -> list[Batch]:
        """Rewrite requests, outcomes and raw files; returns the batches that had any of the rows."""
        touched: list[Batch] = []
        paths: dict[str, bool] = {}
        for batch in self._ledger.batches(self._job.job_id):
            if batch.path not in paths:
                paths[batch.path] = self._requests(batch)
            if paths[batch.path] or self._in_outcomes(batch):
                self._answers(batch)
                touched.append(batch)
            self._fault("erase.batch")
        return touched

    def _requests(self, batch: Batch) -> bool:
        """Rewrite a file of requests that has any of the rows; says whether it has."""
        if self._bare:
            return False
        requests = iter_requests(self._workspace, self._root, batch)
        if not any(request.wire_id in self._wires for request in requests):
            return False
        with tempfile.TemporaryDirectory(prefix="batch-llm-erase-") as folder:
            local = Path(folder) / "requests.jsonl"
            digest = hashlib.sha256()
            with local.open("wb", buffering=1 << 20) as file:
                for request in iter_requests(self._workspace, self._root, batch):
                    line = encode_line(self._request(request))
                    digest.update(line)
                    file.write(line)
            name = f"requests-{digest.hexdigest()[:16]}.jsonl"
            to = f"{batch.path.rpartition('/')[0]}/{name}"
            info = self._workspace.put_file(f"{self._root}/{to}", local)
        self._fault("erase.requests")
        self._ledger.move_requests(self._job.job_id, batch.path, to, info)
        return True

    def _request(self, request: Request) -> Request:
        if request.wire_id not in self._wires:
            return request
        instead = instead_of(request.custom_id)
        if request.wire_id in self._shared:
            return msgspec.structs.replace(request, custom_id=instead, key={}, carry={})
        # Without its hash, so that no row comes to share an answer that is gone.
        return Request(instead, request.wire_id, msgspec.Raw(b"null"), history=request.history)

    def _in_outcomes(self, batch: Batch) -> bool:
        """Say whether outcomes tell of any of the rows: requests may have been rewritten before."""
        if batch.outcomes_sha256 is None:
            return False
        outcomes = iter_outcomes(self._workspace, self._root, batch)
        return any(outcome.wire_id in self._wires for outcome in outcomes)

    def _answers(self, batch: Batch) -> None:
        """Rewrite outcomes and raw files, named in the ledger at once."""
        if batch.outcomes_sha256 is None:
            return
        files = batch.files if self._without_raw else tuple(self._raw(batch, file) for file in batch.files)
        with outcomes_file(self._workspace, self._root, batch) as out:
            for outcome in iter_outcomes(self._workspace, self._root, batch):
                out.write(encode_line(self._outcome(outcome)))
        self._fault("erase.outcomes")
        if self._ledger.rewrite_outcomes(batch, outcomes_sha256=out.sha256, files=files) is None:
            raise _changed(self._job)

    def _outcome(self, outcome: Outcome) -> Outcome:
        if outcome.wire_id not in self._wires:
            return outcome
        disposition = outcome.disposition
        if disposition is not Disposition.LAND and outcome.wire_id not in self._shared:
            # There is nothing left to send again.
            disposition = Disposition.DEAD
        instead = instead_of(outcome.custom_id)
        return msgspec.structs.replace(
            outcome, custom_id=instead, disposition=disposition, message="", text=""
        )

    def _raw(self, batch: Batch, file: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rewrite a result file without the rows' lines; returns what the ledger says of it."""
        gone = [wire_id.encode() for wire_id in self._wires - self._shared]
        path = f"{self._root}/{file['path']}"
        with tempfile.TemporaryDirectory(prefix="batch-llm-erase-") as folder:
            local = Path(folder) / "raw.jsonl"
            digest, dropped = hashlib.sha256(), 0
            opened = self._workspace.open_checked(path, int(file["bytes"]), str(file["sha256"]))
            with opened as stream, local.open("wb", buffering=1 << 20) as out:
                for _, line in iter_lines(read_chunks(stream)):
                    if _names_any(line, gone):
                        dropped += 1
                        continue
                    digest.update(line + b"\n")
                    out.write(line + b"\n")
            if not dropped:
                return file
            to = f"{batch_folder(self._root, batch)}/raw/{file['kind']}-{digest.hexdigest()[:16]}.jsonl"
            info = self._workspace.put_file(to, local)
        new_path = to.removeprefix(f"{self._root}/")
        return {**file, "path": new_path, "bytes": info.size, "sha256": info.sha256}

    # -- results -------------------------------------------------------------------------------------
    def results(self) -> None:
        """Rewrite the published parts that have any of the rows, in every form, each manifest last."""
        for folder in self._results_folders():
            manifest = read_manifest(self._workspace, folder)
            if manifest.get("purged"):
                continue
            gone = 0
            for number, part in enumerate(manifest["parts"]):
                path = f"{folder}/{part['path']}"
                lines = sum(1 for _ in matching_lines(self._workspace, path, self._ids))
                if lines:
                    gone += lines
                    manifest["parts"][number] = self._part(folder, part, number, lines)
            if not gone:
                continue
            manifest |= {"rows": manifest["rows"] - gone, "erased": manifest.get("erased", 0) + gone}
            self._fault("erase.manifest")
            self._workspace.put(f"{folder}/{MANIFEST}", msgspec.json.format(msgspec.json.encode(manifest)))

    def _results_folders(self) -> list[str]:
        start = f"{self._root}/results/"
        paths = self._workspace.list(start.rstrip("/"))
        return [path.removesuffix(f"/{MANIFEST}") for path in paths if path.endswith(f"/{MANIFEST}")]

    def _part(self, folder: str, part: Mapping[str, Any], number: int, lines: int) -> dict[str, Any]:
        stem = f"part-{secrets.token_hex(4)}-{number:05d}"
        with (
            self._workspace.open_checked(f"{folder}/{part['path']}", part["bytes"], part["sha256"]) as file,
            self._workspace.writer(f"{folder}/{stem}.jsonl") as out,
        ):
            for _, line in iter_lines(read_chunks(file)):
                if msgspec.json.decode(line)["custom_id"] not in self._ids:
                    out.write(line + b"\n")
        new = {"path": f"{stem}.jsonl", "rows": part["rows"] - lines, "bytes": out.size, "sha256": out.sha256}
        forms = [self._form(folder, form, stem) for form in part.get("forms", ())]
        return new | ({"forms": forms} if forms else {})

    def _form(self, folder: str, form: Mapping[str, Any], stem: str) -> dict[str, Any]:
        suffix = Path(form["path"]).suffix
        with tempfile.TemporaryDirectory(prefix="batch-llm-erase-") as local_folder:
            before, after = Path(local_folder) / "before", Path(local_folder) / "after"
            path = f"{folder}/{form['path']}"
            with (
                self._workspace.open_checked(path, form["bytes"], form["sha256"]) as file,
                before.open("wb") as out,
            ):
                shutil.copyfileobj(file, out)
            self._drop_rows[suffix](before, after, self._ids)
            info = self._workspace.put_file(f"{folder}/{stem}{suffix}", after)
        return {"path": f"{stem}{suffix}", "bytes": info.size, "sha256": info.sha256}

    # -- what nobody names any more --------------------------------------------------------------------
    def sweep(self, listed: Collection[str]) -> None:
        """Delete files that hold requests or answers and that neither ledger nor manifest names."""
        named = set()
        for batch in self._ledger.batches(self._job.job_id):
            named.add(f"{self._root}/{batch.path}")
            named |= {f"{self._root}/{file['path']}" for file in batch.files}
            if batch.outcomes_sha256 is not None:
                named.add(outcomes_path(self._root, batch, batch.outcomes_sha256))
        for folder in self._results_folders():
            for part in read_manifest(self._workspace, folder)["parts"]:
                named |= {f"{folder}/{file['path']}" for file in (part, *part.get("forms", ()))}
        for path in listed:
            if path not in named and self._holds_rows(path):
                self._workspace.delete_tree(path)

    def _holds_rows(self, path: str) -> bool:
        parts = path.removeprefix(f"{self._root}/").split("/")
        name = parts[-1]
        if name.startswith("."):
            return True
        if parts[0] == "results":
            return name != MANIFEST
        return parts[0] == "batch" or (parts[0].startswith("plan-") and len(parts) > 2)

    def lists(self) -> Lists:
        """Return what rewrites the lists of rows."""
        return Lists(
            self._ledger,
            self._workspace,
            self._root,
            ids=self._ids,
            wires=self._wires,
            shared=self._shared,
            fault=self._fault,
        )


def _names_any(line: bytes, wire_ids: Collection[bytes]) -> bool:
    """Say whether a provider's line names one of the wire ids, escaped or not."""
    if any(wire_id in line for wire_id in wire_ids):
        return True
    if b"\\u00" not in line:
        return False
    try:
        plain = dumps(loads_lenient(line))
    except ValueError:
        return False
    return any(wire_id in plain for wire_id in wire_ids)
