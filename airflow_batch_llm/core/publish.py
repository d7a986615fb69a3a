"""Writes a job's answers to ``results/<revision>/``: parts first, the manifest last."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.fates import EARLIER_JOB, Fate, rider, riding
from airflow_batch_llm.core.files import Columns, encode_line, is_erased, iter_requests, results_path
from airflow_batch_llm.core.jsonl import dumps, iter_lines, loads, read_chunks
from airflow_batch_llm.core.model import Asked, Batch, Job, Request, Row, Usage
from airflow_batch_llm.core.plan_files import Duplicate, Reused, iter_reused
from airflow_batch_llm.core.ports import RowIndex, WholeFile, Workspace
from airflow_batch_llm.core.result_files import iter_raw_rows, row_digest
from airflow_batch_llm.core.spools import Spool
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import AccountingError, WorkspaceError

_answers = msgspec.json.Decoder(Answer)
_columns = msgspec.json.Decoder(Columns)
#: Rows of a part with what earlier jobs answered.
_REUSED_PART = 50_000
MANIFEST = "_manifest.json"


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: answers in all, those of erased rows included, and counts for the ledger."""

    rows: int
    counts: Mapping[str, int]


def publish(tools: Tools, job: Job, batches: list[Batch], index: RowIndex) -> Published:
    """Write one part per batch with the rows it answered and those that share its answers, parts with what
    earlier jobs answered, then the manifest, then drop the old parts.

    :param index: every row's fate, as :func:`count_rows` leaves it.
    """
    folder = results_path(tools.root, job.revision)
    before = read_manifest(tools.workspace, folder)
    parts = _Parts(tools, folder)
    # The requests of earlier revisions hold the columns as they were then.
    today = index if job.revision > 1 else None
    counts: Counter[str] = Counter()
    usage = saved = Usage()
    for number, batch in enumerate(batches):
        wires = set(index.keys(a=Fate.ANSWERED, b=number))
        ridden = _ridden(index, number)
        if not wires and not ridden:
            # Rows may have shared an answer, and been erased since.
            parts.erased += sum(1 for _ in _riders(index, number))
            continue
        with parts.begin() as part, _batch_answers(tools, batch, wires, ridden, today) as answers:
            for wire_id, asked in answers.asked.items():
                if wire_id in wires:
                    part.write(answers.line(wire_id), asked.custom_id)
                    usage = usage + answers.usage(wire_id)
            part.erased += len(wires - answers.asked.keys())
            for duplicate in _riders(index, number):
                if is_erased(duplicate.custom_id):
                    part.erased += 1
                    continue
                part.write(_shared_line(answers.line(duplicate.of), duplicate), duplicate.custom_id)
                saved = saved + answers.usage(duplicate.of)
        counts["answered_round_0" if batch.round == 0 else "answered_later"] += len(wires)
    saved = saved + _publish_reused(tools, job, index, parts)
    _add_further_forms(tools, folder, parts.done)
    rows = sum(part["rows"] for part in parts.done)
    manifest = {
        "version": 1,
        "job": job.job_id,
        "revision": job.revision,
        "round": job.round,
        "rows": rows,
        "usage": usage.named(),
        **({"saved": saved.named()} if saved != Usage() else {}),
        **({"erased": parts.erased} if parts.erased else {}),
        "parts": parts.done,
    }
    tools.fault("publish.before_manifest")
    tools.workspace.put(f"{folder}/{MANIFEST}", msgspec.json.format(msgspec.json.encode(manifest)))
    for part_before in before.get("parts", []):
        for file in (part_before, *part_before.get("forms", ())):
            tools.workspace.delete_tree(f"{folder}/{file['path']}")
    counts["erased"] = parts.erased
    return Published(rows + parts.erased, {name: number for name, number in counts.items() if number})


class _Part:
    """A part on its way: counts its lines, and the rows without one because they were erased."""

    def __init__(self, file: WholeFile) -> None:
        self._file = file
        self.rows = self.erased = 0

    def write(self, line: bytes, custom_id: str) -> None:
        if is_erased(custom_id):
            self.erased += 1
            return
        self._file.write(line)
        self.rows += 1


class _Parts:
    """The parts of one publication, with what the manifest says of each."""

    def __init__(self, tools: Tools, folder: str) -> None:
        self._tools, self._folder, self._generation = tools, folder, secrets.token_hex(4)
        self.done: list[dict[str, Any]] = []
        self.erased = 0

    @contextmanager
    def begin(self) -> Iterator[_Part]:
        """Open the next part; it appears when the block ends."""
        path = f"part-{self._generation}-{len(self.done):05d}.jsonl"
        with self._tools.workspace.writer(f"{self._folder}/{path}") as out:
            part = _Part(out)
            yield part
        self.done.append({"path": path, "rows": part.rows, "bytes": out.size, "sha256": out.sha256})
        self.erased += part.erased


def _riders(index: RowIndex, number: int) -> Iterator[Duplicate]:
    """Yield the rows that share an answer of a batch, or of earlier jobs."""
    for wire_id in index.keys(a=Fate.ANSWERED, b=riding(number)):
        yield rider(index, wire_id)


def _ridden(index: RowIndex, number: int) -> set[str]:
    """Return the requests whose answer other rows share; rows that were erased do not."""
    return {duplicate.of for duplicate in _riders(index, number) if not is_erased(duplicate.custom_id)}


def _shared_line(line: bytes, duplicate: Duplicate) -> bytes:
    """Make the answer to one row that of another, which cost nothing."""
    answer = _answers.decode(line)
    answer.custom_id, answer.wire_id = duplicate.custom_id, duplicate.wire_id
    answer.key, answer.carry = duplicate.key, duplicate.carry
    answer.origin, answer.usage = "duplicate", Usage().named()
    return encode_line(answer)


def _publish_reused(tools: Tools, job: Job, index: RowIndex, parts: _Parts) -> Usage:
    """Write what earlier jobs answered, also for rows that share it; returns the tokens not spent."""
    if job.plan_id is None:
        return Usage()
    saved = Usage()
    with ExitStack() as stack:
        is_shared = next(_riders(index, EARLIER_JOB), None) is not None
        shared = _SharedAnswers(tools, stack) if is_shared else None
        answers = iter_reused(tools.workspace, tools.root, job.plan_id)
        while (first := next(answers, None)) is not None:
            with parts.begin() as part:
                for answer in chain([first], islice(answers, _REUSED_PART - 1)):
                    found = index.get(answer.wire_id)
                    if found is None or found[:2] != (Fate.ANSWERED, EARLIER_JOB):
                        continue
                    line = _reused_line(answer)
                    part.write(line, answer.custom_id)
                    saved = saved + Usage(**answer.usage)
                    if shared is not None:
                        shared.keep(answer.wire_id, line, answer.usage)
        if shared is not None:
            with parts.begin() as part:
                for duplicate in _riders(index, EARLIER_JOB):
                    line, used = shared.answer(duplicate.of)
                    part.write(_shared_line(line, duplicate), duplicate.custom_id)
                    saved = saved + used
    return saved


class _SharedAnswers:
    """Answers of earlier jobs that are written for other rows as well."""

    def __init__(self, tools: Tools, stack: ExitStack) -> None:
        self._lines = stack.enter_context(Spool())
        self._places = stack.enter_context(tools.new_index())

    def keep(self, wire_id: str, line: bytes, used: Mapping[str, int]) -> None:
        """Note an answer and what it was charged."""
        self._places.put([(wire_id, 0, self._lines.add(line), dumps(used))], unless_a=-1)

    def answer(self, wire_id: str) -> tuple[bytes, Usage]:
        """Return both. :raises AccountingError: there is none."""
        found = self._places.get(wire_id)
        if found is None:
            raise AccountingError(f"request {wire_id} is to answer another row as well, but has no answer")
        return self._lines.read(found[1]), Usage(**loads(found[2] or b"{}"))


def _reused_line(answer: Reused) -> bytes:
    return encode_line(
        Answer(
            custom_id=answer.custom_id,
            wire_id=answer.wire_id,
            output=answer.output,
            model=answer.model,
            usage=Usage().named(),
            finish_reason=answer.finish_reason,
            round=0,
            origin="reused",
            key=answer.key,
            carry=answer.carry,
        )
    )


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


class _BatchAnswers:
    """The answers of a batch as lines, by wire id, in a temporary file.

    Result rows come in any order: each is encoded as it is met, so that memory holds places and not
    answers.

    :param asked: whose answers they are, in request order.
    """

    def __init__(self, asked: Mapping[str, Asked], spool: Spool) -> None:
        self.asked = asked
        self._spool = spool
        self._places: dict[str, tuple[int, Usage]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, wire_id: str, line: bytes, used: Usage) -> None:
        """Note an answer; a later one for the same request stands in its place."""
        self._places[wire_id] = (self._spool.add(line), used)

    def line(self, wire_id: str) -> bytes:
        """Return the encoded answer."""
        return self._spool.read(self._places[wire_id][0])

    def usage(self, wire_id: str) -> Usage:
        """Return what the answer was charged."""
        return self._places[wire_id][1]


@contextmanager
def _batch_answers(
    tools: Tools, batch: Batch, wires: set[str], ridden: set[str], today: RowIndex | None
) -> Iterator[_BatchAnswers]:
    """Read the answers of a batch to some of its requests.

    The answer to an erased row is gone, unless other rows share it.

    :param wires: rows that it answered.
    :param ridden: requests whose answer other rows share.
    :param today: holds the columns of the rows, where they may have changed since the batch was planned.
    """
    asked, gone, wanted = {}, 0, wires | ridden
    for request in iter_requests(tools.workspace, tools.root, batch):
        if request.wire_id not in wanted:
            continue
        if is_erased(request.custom_id) and request.wire_id not in ridden:
            gone += 1
        else:
            asked[request.wire_id] = _asked(request, today)
    with Spool() as spool:
        answers = _BatchAnswers(asked, spool)
        for row, line in _chosen(tools, batch, asked):
            answers.keep(row.wire_id, line, row.usage)
        if len(answers) != len(asked) or len(asked) + gone != len(wanted):
            raise AccountingError(
                f"batch {batch.batch_id}: {len(wanted) - gone} rows are answered, "
                f"{len(answers)} answers are in its result files"
            )
        yield answers


def _asked(request: Request, today: RowIndex | None) -> Asked:
    found = today.get(request.wire_id) if today is not None else None
    if found is None or found[2] is None:
        return Asked(request.custom_id, request.key, request.carry)
    columns = _columns.decode(found[2])
    return Asked(request.custom_id, columns.key, columns.carry)


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
        usage=row.usage.named(),
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
