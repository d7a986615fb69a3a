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
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.by_hand import Declined
from airflow_batch_llm.core.files import (
    ERASED,
    HAS_ERASED,
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
from airflow_batch_llm.core.model import Batch, Job, Outcome, Request
from airflow_batch_llm.core.plan_files import DUPLICATES, REUSED, feed_digests
from airflow_batch_llm.core.ports import Backend, FileInfo, Ledger, Workspace
from airflow_batch_llm.core.publish import MANIFEST, read_manifest
from airflow_batch_llm.core.purge import delete_at_provider, refuse_unsettled
from airflow_batch_llm.core.retention import Part, begun_parts
from airflow_batch_llm.core.verdicts import Disposition

#: What stays of a row in the lists of a plan, beside the digest of its id.
_STAYS = frozenset(
    (
        "line",
        "wire_id",
        "verdict",
        "code",
        "of",
        "job",
        "batch",
        "answered_at",
        "usage",
        "model",
        "finish_reason",
    )
)
#: What stays where other rows share the request and its answer.
_SHARED = frozenset(("hash", "twin", "output"))
_ROWS, _DESCRIPTION = "rows.jsonl", "job.json"

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


def erased_id(custom_id: str) -> str:
    """Return what stands in the place of a custom id: a digest, the same everywhere."""
    return ERASED + hashlib.sha256(custom_id.encode("utf-8")).hexdigest()


def find_rows(ledger: Ledger, workspace: Workspace, job: Job, custom_ids: Collection[str]) -> dict[str, str]:
    """Return wire id -> custom id of the job's rows that have one of these ids."""
    root = workspace.job_root(job.key)
    found: dict[str, str] = {}
    for plan_id in _plans(workspace, root):
        for line in _matching(workspace, f"{plan_path(root, plan_id)}/{_ROWS}", custom_ids):
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
    marked = ledger.note_purge(job, "erase_begun", seen={HAS_ERASED: True}, actor=actor, reason=told)
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
    now = work.plans()
    if ledger.note_purge(now, "erased", seen={}, actor=actor, reason=told) is None:
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
        for plan_id in _plans(self._workspace, self._root):
            folder = plan_path(self._root, plan_id)
            for line in _lines(self._workspace, f"{folder}/{DUPLICATES}"):
                if line["wire_id"] in rows:
                    left_behind.add(line["of"])
                elif not is_erased(line["custom_id"]):
                    shared.add(line["of"])
            for line in _lines(self._workspace, f"{folder}/{_ROWS}", ERASED) if left_behind else ():
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
        instead = _instead(request.custom_id)
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
        instead = _instead(outcome.custom_id)
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
                lines = sum(1 for _ in _matching(self._workspace, path, self._ids))
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

    # -- plans ---------------------------------------------------------------------------------------
    def plans(self) -> Job:
        """Rewrite the lists of rows; a plan that the job names becomes another plan, others stay theirs."""
        job = self._job
        for plan_id in _plans(self._workspace, self._root):
            folder = plan_path(self._root, plan_id)
            if not self._lists_any(folder):
                continue
            tops = self._top_files(folder)
            if plan_id not in (job.plan_id, job.seen.get("previous_plan")):
                self._copy_plan(folder, folder, tops)
                continue
            new_id = secrets.token_hex(8)
            digest = self._copy_plan(folder, plan_path(self._root, new_id), tops)
            self._fault("erase.plan")
            moved = self._ledger.move_plan(job, plan_id, new_id, digest)
            if moved is None:
                raise _changed(job)
            job = moved
            for name in tops:
                self._workspace.delete_tree(f"{folder}/{name}")
        return job

    def _lists_any(self, folder: str) -> bool:
        """Say whether a plan lists any of the rows, or holds an answer that is no longer shared."""
        if any(True for _ in _matching(self._workspace, f"{folder}/{_ROWS}", self._ids)):
            return True
        reused = _lines(self._workspace, f"{folder}/{REUSED}", ERASED)
        return any(line["wire_id"] in self._wires and line["output"] is not None for line in reused)

    def _top_files(self, folder: str) -> list[str]:
        paths = (path.removeprefix(f"{folder}/") for path in self._workspace.list(folder))
        return [name for name in paths if "/" not in name]

    def _copy_plan(self, folder: str, to: str, names: Collection[str]) -> str:
        """Write a plan's lists without what they say of the rows; returns the plan's digest."""
        digest = hashlib.sha256()
        written: dict[str, FileInfo] = {}
        for name in sorted(names, key=lambda name: name == _ROWS):
            if not name.endswith(".jsonl"):
                continue
            with (
                self._workspace.open(f"{folder}/{name}") as file,
                self._workspace.writer(f"{to}/{name}") as out,
            ):
                for _, line in iter_lines(read_chunks(file)):
                    kept, wire_id = self._kept(line)
                    out.write(kept + b"\n")
                    if name == _ROWS:
                        digest.update(wire_id.encode())
            written[name] = FileInfo(out.size, out.sha256)
        described = self._read_json(f"{folder}/{_DESCRIPTION}")
        files = {
            name: {**facts, "bytes": written[name].size, "sha256": written[name].sha256}
            for name, facts in described.get("files", {}).items()
        }
        if files:
            described["files"] = files
            feed_digests(digest, files)
        self._workspace.put(f"{to}/{_DESCRIPTION}", msgspec.json.format(msgspec.json.encode(described)))
        for name in names:
            if to != folder and not name.endswith(".jsonl") and name != _DESCRIPTION:
                with self._workspace.open(f"{folder}/{name}") as file:
                    self._workspace.put(f"{to}/{name}", file.read())
        return digest.hexdigest()

    def _kept(self, line: bytes) -> tuple[bytes, str]:
        """Return a line of a list as it stays, and its wire id."""
        values = msgspec.json.decode(line)
        wire_id: str = values["wire_id"]
        if wire_id not in self._wires:
            return line, wire_id
        stays = _STAYS | _SHARED if wire_id in self._shared else _STAYS
        kept = {name: value for name, value in values.items() if name in stays}
        kept["custom_id"] = _instead(values["custom_id"])
        if "output" in values:
            kept.setdefault("output", None)
        return dumps(kept), wire_id

    def _read_json(self, path: str) -> dict[str, Any]:
        with self._workspace.open(path) as file:
            found: dict[str, Any] = msgspec.json.decode(file.read())
        return found


# -- reading ---------------------------------------------------------------------------------------
def _instead(custom_id: str) -> str:
    return custom_id if is_erased(custom_id) else erased_id(custom_id)


def _plans(workspace: Workspace, root: str) -> list[str]:
    """Return the ids of the plans that list rows."""
    start, end = plan_path(root, ""), f"/{_ROWS}"
    found = []
    for path in workspace.list(root):
        plan_id = path.removeprefix(start).removesuffix(end)
        if path.startswith(start) and path.endswith(end) and "/" not in plan_id:
            found.append(plan_id)
    return found


def _matching(workspace: Workspace, path: str, custom_ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file whose ``custom_id`` is one of these; the others are not decoded."""
    needles = [msgspec.json.encode(custom_id) for custom_id in custom_ids]
    with workspace.open(path) as file:
        for _, line in iter_lines(read_chunks(file)):
            if not any(needle in line for needle in needles):
                continue
            values = msgspec.json.decode(line)
            if values["custom_id"] in custom_ids:
                yield values


def _lines(workspace: Workspace, path: str, holding: str = "") -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that hold a text; none where there is no such file."""
    if not workspace.exists(path):
        return
    needle = holding.encode()
    with workspace.open(path) as file:
        for _, line in iter_lines(read_chunks(file)):
            if needle in line:
                yield msgspec.json.decode(line)


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
