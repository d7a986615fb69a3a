"""Writes a job's answers to ``results/<revision>/``: parts first, the manifest last."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.files import encode_line, iter_requests, results_path
from airflow_batch_llm.core.jsonl import iter_lines, loads, read_chunks
from airflow_batch_llm.core.judging import iter_raw_rows, row_digest
from airflow_batch_llm.core.model import Asked, Batch, Job, Row, Usage
from airflow_batch_llm.core.ports import RowIndex, Workspace
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import AccountingError, WorkspaceError

_answers = msgspec.json.Decoder(Answer)
MANIFEST = "_manifest.json"


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: answers in all, and counts for the ledger."""

    rows: int
    counts: Mapping[str, int]


def publish(tools: Tools, job: Job, batches: list[Batch], index: RowIndex, *, answered: int) -> Published:
    """Write one part per batch with the rows it answered, then the manifest, then drop the old parts.

    :param index: wire id -> (fate, number of the batch that decided it).
    :param answered: the fate of answered rows.
    """
    folder = results_path(tools.root, job.revision)
    before = read_manifest(tools.workspace, folder)
    generation = secrets.token_hex(4)
    parts: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    usage = Usage()
    for number, batch in enumerate(batches):
        wires = set(index.keys(a=answered, b=number))
        if not wires:
            continue
        path = f"part-{generation}-{len(parts):05d}.jsonl"
        with tools.workspace.writer(f"{folder}/{path}") as out:
            for line, used in _answer_lines(tools, batch, wires):
                out.write(line)
                usage = usage + used
        parts.append({"path": path, "rows": len(wires), "bytes": out.size, "sha256": out.sha256})
        counts["answered_round_0" if batch.round == 0 else "answered_later"] += len(wires)
    _add_further_forms(tools, folder, parts)
    rows = sum(part["rows"] for part in parts)
    manifest = {
        "version": 1,
        "job": job.job_id,
        "revision": job.revision,
        "round": job.round,
        "rows": rows,
        "usage": _usage_dict(usage),
        "parts": parts,
    }
    tools.fault("publish.before_manifest")
    tools.workspace.put(f"{folder}/{MANIFEST}", msgspec.json.format(msgspec.json.encode(manifest)))
    for part in before.get("parts", []):
        for file in (part, *part.get("forms", ())):
            tools.workspace.delete_tree(f"{folder}/{file['path']}")
    return Published(rows, dict(counts))


def _add_further_forms(tools: Tools, folder: str, parts: list[dict[str, Any]]) -> None:
    """Write the parts in the other forms that were asked for, and note them with each part."""
    for form in tools.spec.results_formats:
        fitted = form.fitted(answer for part in parts for answer in _read_part(tools, folder, part))
        for part in parts:
            path = part["path"].removesuffix(".jsonl") + form.suffix
            with tempfile.TemporaryDirectory(prefix="batch-llm-results-") as local_folder:
                local = Path(local_folder) / "part"
                writer = fitted.open(local)
                try:
                    for answer in _read_part(tools, folder, part):
                        writer.write(answer)
                finally:
                    writer.close()
                info = tools.workspace.put_file(f"{folder}/{path}", local)
            part.setdefault("forms", []).append({"path": path, "bytes": info.size, "sha256": info.sha256})


def _read_part(tools: Tools, folder: str, part: Mapping[str, Any]) -> Iterator[Answer]:
    with tools.workspace.open_checked(f"{folder}/{part['path']}", part["bytes"], part["sha256"]) as file:
        for _, line in iter_lines(read_chunks(file)):
            yield _answers.decode(line)


def read_manifest(workspace: Workspace, folder: str) -> dict[str, Any]:
    """Return a results folder's manifest, empty where there is none yet."""
    path = f"{folder}/{MANIFEST}"
    if not workspace.exists(path):
        return {}
    with workspace.open(path) as file:
        manifest: dict[str, Any] = loads(file.read())
    return manifest


def read_answers(tools: Tools, job: Job) -> Iterator[Answer]:
    """Yield the published answers of the job's revision, checked against the manifest."""
    folder = results_path(tools.root, job.revision)
    manifest = read_manifest(tools.workspace, folder)
    if not manifest:
        raise WorkspaceError(f"job {job.job_id} has no results in {tools.workspace.url(folder)}")
    for part in manifest["parts"]:
        yield from _read_part(tools, folder, part)


def _answer_lines(tools: Tools, batch: Batch, wires: set[str]) -> Iterator[tuple[bytes, Usage]]:
    """Yield the encoded answers of a batch in request order.

    Result rows come in any order: each is encoded into a temporary file as it is met, then the file is
    read in request order, so that memory holds places and not answers.
    """
    asked = {
        r.wire_id: Asked(r.custom_id, r.key, r.carry)
        for r in iter_requests(tools.workspace, tools.root, batch)
        if r.wire_id in wires
    }
    with tempfile.TemporaryDirectory(prefix="batch-llm-answers-") as folder:
        spool = (Path(folder) / "answers").open("w+b")
        with spool:
            places: dict[str, tuple[int, int, Usage]] = {}
            offset = 0
            for row, line in _chosen(tools, batch, asked):
                spool.write(line)
                places[row.wire_id] = (offset, len(line), row.usage)
                offset += len(line)
            if len(places) != len(asked) or len(asked) != len(wires):
                raise AccountingError(
                    f"batch {batch.batch_id}: {len(wires)} rows are answered, "
                    f"{len(places)} answers are in its result files"
                )
            spool.flush()
            for wire_id in asked:
                place, size, used = places[wire_id]
                spool.seek(place)
                yield spool.read(size), used


def _chosen(tools: Tools, batch: Batch, asked: Mapping[str, Asked]) -> Iterator[tuple[Row, bytes]]:
    """Yield the answers of a batch with their lines; where one request has several, the one that stands last.

    What today's judge calls an answer stands before what it does not, and then the one that was judged:
    the order of the rows decides nothing.
    """
    seen: set[str] = set()
    repeated: dict[str, tuple[bool, bytes] | None] = {}
    for row in _answered(tools, batch, asked):
        if row.wire_id in seen:
            repeated[row.wire_id] = None
        else:
            seen.add(row.wire_id)
            yield row, _answer_line(tools, batch, row, asked[row.wire_id])
    for row in _answered(tools, batch, repeated) if repeated else ():
        line = _answer_line(tools, batch, row, asked[row.wire_id])
        judged, _, _ = tools.spec.judge.check(row, asked[row.wire_id])
        place, best = (judged is not Verdict.OK, row_digest(row)), repeated[row.wire_id]
        if best is None or place < best:
            repeated[row.wire_id] = place
            yield row, line


def _answered(tools: Tools, batch: Batch, wires: Collection[str]) -> Iterator[Row]:
    for row in iter_raw_rows(tools, batch, batch.files):
        if row.verdict is Verdict.OK and row.wire_id in wires:
            yield row


def _answer_line(tools: Tools, batch: Batch, row: Row, asked: Asked) -> bytes:
    """Encode an answer. One that landed under an earlier judge stays answered, as plain JSON or text."""
    try:
        output = tools.spec.judge.output(row)
    except ValueError:
        output = _plain_output(row)
    answer = Answer(
        custom_id=asked.custom_id,
        wire_id=row.wire_id,
        output=output,
        model=row.model or batch.model,
        usage=_usage_dict(row.usage),
        finish_reason=row.finish_reason,
        round=batch.round,
        key=asked.key,
        carry=asked.carry,
    )
    return encode_line(answer)


def _plain_output(row: Row) -> Any:
    try:
        return loads((row.text or "").encode("utf-8"))
    except ValueError:
        return row.text


def _usage_dict(usage: Usage) -> dict[str, int]:
    return {
        "input": usage.input,
        "output": usage.output,
        "cached": usage.cached,
        "cache_write": usage.cache_write,
        "reasoning": usage.reasoning,
    }
