"""``batch-llm dead-letters export``: letters with their requests, as a file. Holds prompts."""

from __future__ import annotations

import argparse
import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.cli.exits import FAILED, Stopped
from airflow_batch_llm.cli.letters_list import add_state, letter_facts, states_of
from airflow_batch_llm.cli.parsers import add_command
from airflow_batch_llm.cli.printing import print_json
from airflow_batch_llm.cli.session import open_workspace
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.files import iter_outcomes, iter_requests
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, DeadLetter, Job, Request
from airflow_batch_llm.core.ports import RowIndex, Workspace
from airflow_batch_llm.core.retention import refuse_purged
from airflow_batch_llm.core.shared_requests import all_shared_requests
from airflow_batch_llm.core.spools import Spool
from airflow_batch_llm.core.tools import chunks
from airflow_batch_llm.exceptions import WorkspaceError
from airflow_batch_llm.storage.row_index import DiskRowIndex

#: What stands in the file, in this order, then what the last answer began with, and the request.
FIELDS = ("custom_id", "state", "verdict", "code", "attempts", "exhausted", "wire_id")
TEXT, REQUEST = "text", "request"
#: A request that letters name, before and after it was met.
_WANTED, _FOUND = 0, 1
#: Names the request beside the facts of its letter, as long as they wait for it.
_OF = "of"


def add_export(actions: Any) -> None:
    """Add ``dead-letters export``."""
    parser = add_command(
        actions,
        "export",
        "write dead letters of a job with their requests into a file",
        description="Write dead letters with their requests into a file, whole or not at all. The file holds "
        "prompts and rejected answers: only you may read it.",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="overwritten where it exists")
    parser.add_argument(
        "--format",
        choices=["jsonl", "csv"],
        help="(default: csv where FILE ends in .csv, else jsonl: JSON lines)",
    )
    parser.add_argument("--code", help="only letters with this code")
    add_state(parser)


def export(args: argparse.Namespace) -> None:
    """Write the file and say how many letters it holds."""
    ledger = open_target(args)
    job = find_job(ledger, args.job)
    refuse_purged(job)
    form = args.format or ("csv" if args.out.suffix.lower() == ".csv" else "jsonl")
    states, code = states_of(args), args.code
    letters = (
        letter
        for letter in ledger.dead_letters(job.job_id, states=states)
        if code is None or letter.code == code
    )
    lines = lines_of(ledger, open_workspace(), job, letters)
    written = _write_whole(args.out, lines, _csv_line if form == "csv" else _json_line, form == "csv")
    if args.json:
        print_json({"job_id": job.job_id, "letters": written, "file": str(args.out), "format": form})
        return
    print(f"{written} dead letters of job {job.job_id} are in {args.out}.")


def lines_of(
    ledger: Ledger, workspace: Workspace, job: Job, letters: Iterator[DeadLetter]
) -> Iterator[dict[str, Any]]:
    """Yield what the file says of each letter. ``request`` is None for a row that was never sent.

    ``text`` is the beginning of an answer that was filtered, refused or rejected, "" for others.

    :raises WorkspaceError: a request is not in the workspace, or not what the ledger says.
    """
    root = workspace.job_root(job.key)
    with DiskRowIndex() as index, DiskRowIndex() as others, Spool() as facts, Spool() as requests:
        shared = all_shared_requests(workspace, root, job, others)
        paths: dict[str, int] = {}
        for chunk in chunks(letters, 1000):
            wanted = []
            for letter in chunk:
                if not letter.request_path:
                    yield {**_facts(letter), TEXT: "", REQUEST: None}
                    continue
                place = paths.setdefault(letter.request_path, len(paths))
                request = f"{place} {shared.of(letter.wire_id)}"
                facts.add(_json_line({_OF: request, **_facts(letter)}))
                wanted.append((request, _WANTED, 0, None))
            index.put(wanted, unless_a=-1)
        for batch in ledger.batches(job.job_id):
            if batch.path in paths and batch.kind is not BatchKind.DUPLICATE:
                _keep_requests(workspace, root, batch, paths[batch.path], index, requests)
        missing = 0
        for line in facts:
            told = msgspec.json.decode(line)
            found = index.get(told.pop(_OF))
            if found is None or found[0] == _WANTED:
                missing += 1
            else:
                kept = _kept.decode(requests.read(found[1]))
                yield {**told, TEXT: kept.text, REQUEST: kept.request}
    if missing:
        raise WorkspaceError(f"the requests of {missing} dead letters are not in the workspace")


class _Kept(msgspec.Struct):
    """A request of a letter, with what stands beside its outcome."""

    text: str
    request: msgspec.Raw


_kept = msgspec.json.Decoder(_Kept)


def _keep_requests(
    workspace: Workspace, root: str, batch: Batch, place: int, index: RowIndex, requests: Spool
) -> None:
    """Write down the requests of a batch that letters name: one may be that of several rows."""
    for request, text in _with_words(workspace, root, batch):
        key = f"{place} {request.wire_id}"
        found = index.get(key)
        if found is not None and found[0] == _WANTED:
            kept = requests.add(msgspec.json.encode(_Kept(text, request.body)) + b"\n")
            index.put([(key, _FOUND, kept, None)], unless_a=-1)


def _with_words(workspace: Workspace, root: str, batch: Batch) -> Iterator[tuple[Request, str]]:
    """Yield a batch's requests with what stands beside their outcomes."""
    requests = iter_requests(workspace, root, batch)
    if batch.state is not BatchState.RECONCILED:
        yield from ((request, "") for request in requests)
        return
    for request, outcome in zip(requests, iter_outcomes(workspace, root, batch), strict=True):
        yield request, outcome.text


def _facts(letter: DeadLetter) -> dict[str, Any]:
    facts = letter_facts(letter)
    return {name: facts[name] for name in FIELDS}


def _json_line(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _csv_line(line: dict[str, Any]) -> bytes:
    text = io.StringIO()
    body = line[REQUEST]
    request = bytes(body).decode("utf-8") if body is not None else ""
    csv.writer(text, lineterminator="\n").writerow([*(line[name] for name in FIELDS), line[TEXT], request])
    return text.getvalue().encode("utf-8")


def _write_whole(
    out: Path, lines: Iterator[dict[str, Any]], encode: Callable[[dict[str, Any]], bytes], titles: bool
) -> int:
    """Write the file beside its place, then put it there; returns how many lines were given."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise Stopped(FAILED, f"{out} cannot be written: {error.strerror}") from None
    written = 0
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as file:
            if titles:
                file.write((",".join((*FIELDS, TEXT, REQUEST)) + "\n").encode())
            for line in lines:
                file.write(encode(line))
                written += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, out)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise Stopped(FAILED, f"{out} cannot be written: {error.strerror}") from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return written
