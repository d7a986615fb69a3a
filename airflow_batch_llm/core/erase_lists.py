"""The lists of rows of a job's plans: who is in them, and how single rows go out of them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from airflow_batch_llm.core.files import ERASED, is_erased, plan_path
from airflow_batch_llm.core.jsonl import dumps, iter_lines, read_chunks
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Job
from airflow_batch_llm.core.plan_files import REUSED, feed_digests
from airflow_batch_llm.core.ports import FileInfo, Workspace

#: What stays of a row in the lists of a plan, beside the digest of its id.
_STAYS = frozenset(
    ["line", "wire_id", "verdict", "code", "of", "job", "batch", "answered_at"]
    + ["usage", "model", "finish_reason"]
)
#: What stays where other rows share the request and its answer.
_SHARED = frozenset(("hash", "twin", "output"))
ROWS, _DESCRIPTION = "rows.jsonl", "job.json"


def erased_id(custom_id: str) -> str:
    """Return what stands in the place of a custom id: a digest, the same everywhere."""
    return ERASED + hashlib.sha256(custom_id.encode("utf-8")).hexdigest()


def instead_of(custom_id: str) -> str:
    """Return what stands in the place of an id, which may do so already."""
    return custom_id if is_erased(custom_id) else erased_id(custom_id)


def listed_plans(workspace: Workspace, root: str) -> list[str]:
    """Return the ids of the plans that list rows."""
    start, end = plan_path(root, ""), f"/{ROWS}"
    found = []
    for path in workspace.list(root):
        plan_id = path.removeprefix(start).removesuffix(end)
        if path.startswith(start) and path.endswith(end) and "/" not in plan_id:
            found.append(plan_id)
    return found


def matching_lines(workspace: Workspace, path: str, custom_ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file whose ``custom_id`` is one of these; the others are not decoded."""
    needles = [msgspec.json.encode(custom_id) for custom_id in custom_ids]
    with workspace.open(path) as file:
        for _, line in iter_lines(read_chunks(file)):
            if not any(needle in line for needle in needles):
                continue
            values = msgspec.json.decode(line)
            if values["custom_id"] in custom_ids:
                yield values


def lines_of(workspace: Workspace, path: str, holding: str = "") -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that hold a text; none where there is no such file."""
    if not workspace.exists(path):
        return
    needle = holding.encode()
    with workspace.open(path) as file:
        for _, line in iter_lines(read_chunks(file)):
            if needle in line:
                yield msgspec.json.decode(line)


class Lists:
    """The lists of rows of a job's plans, which change last.

    :param ids: custom ids of the rows that go.
    :param wires: their wire ids, and those of rows whose answer is no longer shared.
    :param shared: those of them whose request and answer other rows share.
    """

    def __init__(
        self,
        ledger: Ledger,
        workspace: Workspace,
        root: str,
        *,
        ids: Collection[str],
        wires: Collection[str],
        shared: Collection[str],
        fault: Callable[[str], None],
    ) -> None:
        self._ledger, self._workspace, self._root = ledger, workspace, root
        self._ids, self._wires, self._shared, self._fault = ids, wires, shared, fault

    def rewrite(self, job: Job) -> Job | None:
        """Rewrite the lists; a plan that the job names becomes another plan, others stay as they are called.

        Returns the job as it is now; None where it was changed at this moment.
        """
        for plan_id in listed_plans(self._workspace, self._root):
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
                return None
            job = moved
            for name in tops:
                self._workspace.delete_tree(f"{folder}/{name}")
        return job

    def _lists_any(self, folder: str) -> bool:
        """Say whether a plan lists any of the rows, or holds an answer that is no longer shared."""
        if any(True for _ in matching_lines(self._workspace, f"{folder}/{ROWS}", self._ids)):
            return True
        reused = lines_of(self._workspace, f"{folder}/{REUSED}", ERASED)
        return any(line["wire_id"] in self._wires and line["output"] is not None for line in reused)

    def _top_files(self, folder: str) -> list[str]:
        paths = (path.removeprefix(f"{folder}/") for path in self._workspace.list(folder))
        return [name for name in paths if "/" not in name]

    def _copy_plan(self, folder: str, to: str, names: Collection[str]) -> str:
        """Write a plan's lists without what they say of the rows; returns the plan's digest."""
        digest = hashlib.sha256()
        written: dict[str, FileInfo] = {}
        for name in sorted(names, key=lambda name: name == ROWS):
            if not name.endswith(".jsonl"):
                continue
            with (
                self._workspace.open(f"{folder}/{name}") as file,
                self._workspace.writer(f"{to}/{name}") as out,
            ):
                for _, line in iter_lines(read_chunks(file)):
                    kept, wire_id = self._kept(line)
                    out.write(kept + b"\n")
                    if name == ROWS:
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
        kept["custom_id"] = instead_of(values["custom_id"])
        if "output" in values:
            kept.setdefault("output", None)
        return dumps(kept), wire_id

    def _read_json(self, path: str) -> dict[str, Any]:
        with self._workspace.open(path) as file:
            found: dict[str, Any] = msgspec.json.decode(file.read())
        return found
