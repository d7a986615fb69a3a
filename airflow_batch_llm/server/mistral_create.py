"""Makes Mistral's jobs: of one file, of several, or of requests that go along with the create call.

The body of the call lies on disk and is read through a memory map: memory holds where each request begins,
never the requests.
"""

from __future__ import annotations

import mmap
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.files import StoredFile
from airflow_batch_llm.server.mistral_files import MistralFiles, names_a_line, scenario_fault
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.mistral_objects import CreateJob, check_create, parse_create
from airflow_batch_llm.server.mistral_validation import MOST, LineFault, check_line
from airflow_batch_llm.server.openai_objects import BadCall
from airflow_batch_llm.server.scenario import BatchRule
from airflow_batch_llm.server.services import Services

#: Results do not expire: a hundred years, in seconds.
_FOR_EVER = 100 * 365 * 86_400
#: How long a file that no client sees outlives its job's time.
_HOURS_MORE = 24

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class LinesRefused(Exception):
    """Requests that came along with a create call are wrong."""

    def __init__(self, faults: list[LineFault]) -> None:
        super().__init__()
        self.faults = faults


class JobMaker:
    """Creates jobs in the server's stores."""

    def __init__(self, services: Services, files: MistralFiles) -> None:
        self._services = services
        self._files = files

    def create(self, body: Path) -> StoredBatch:
        """Create the job that the body of a call asks for.

        :raises BadCall: 422, a member is wrong; 404, a file is not there; 429 or as the scenario says, the
            queue is full.
        :raises LinesRefused: requests that came along are wrong.
        """
        if not body.stat().st_size:
            raise BadCall("Field required", status=422, code="missing", param="body")
        with (
            body.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            order = parse_create(view)
            try:
                return self._create(order)
            finally:
                if order.requests:
                    order.requests.clear()  # they hold the map open

    def _create(self, order: CreateJob) -> StoredBatch:
        check_create(order, self._services.scenarios.current()[1].unknown_models)
        given = [self._files.get(file_id) for file_id in order.input_files or ()]
        if any(stored.purpose != "batch" for stored in given):
            raise BadCall("A file is not for batches.", status=422, param="input_files")
        self._refuse(order)
        input_file = given[0] if len(given) == 1 else self._joined(given, order)
        return self._services.batches.create(
            dialect=MistralDialect.name,
            endpoint=order.endpoint,
            input_file_id=input_file.id,
            completion_window=f"{order.timeout_hours}h",
            metadata=order.metadata,
            output_seconds=_FOR_EVER,
            batch_id=str(uuid.uuid4()),
            model=order.model,
            extra={
                "input_files": [stored.id for stored in given],
                "requests": input_file.lines,
                "result_ids": {kind: str(uuid.uuid4()) for kind in ("output", "error")},
            },
        )

    def _refuse(self, order: CreateJob) -> None:
        """:raises BadCall: the queue is full. :raises LinesRefused: requests that came along are wrong."""

        def refuses(rule: BatchRule) -> bool:
            return rule.fault == "queue_full" or (bool(order.requests) and names_a_line(rule))

        faults = _faults(order.requests or ())
        if faults:
            raise LinesRefused(faults)
        rule = self._services.scenarios.draw_refusal(refuses)
        if rule is not None and rule.fault == "queue_full":
            raise BadCall("Too many requests are pending in this workspace.", status=rule.status or 429)
        if rule is not None:
            raise LinesRefused([scenario_fault(rule)])

    def _joined(self, given: Sequence[StoredFile], order: CreateJob) -> StoredFile:
        """Write several files, or the requests that came along, as one that no client sees."""
        files, requests = self._services.files, order.requests or ()
        temporary = files.new_temporary()
        try:
            with temporary.open("wb") as target:
                for stored in given:
                    with files.path(stored.id).open("rb") as source:
                        shutil.copyfileobj(source, target)
                    if not _ends_line(files.path(stored.id)):
                        target.write(b"\n")
                for request in requests:
                    target.write(_encoder.encode(_any.decode(request)) + b"\n")
            return files.add(
                temporary,
                filename="requests.jsonl",
                purpose="batch",
                lines=sum(stored.lines for stored in given) + len(requests),
                life=(order.timeout_hours + _HOURS_MORE) * 3_600,
                file_id=str(uuid.uuid4()),
                dialect=MistralDialect.name,
                extra={"joined": True},
            )
        finally:
            temporary.unlink(missing_ok=True)


def _faults(requests: Sequence[msgspec.Raw]) -> list[LineFault]:
    found: list[LineFault] = []
    for number, request in enumerate(requests, start=1):
        fault = check_line(bytes(request))
        if fault is not None:
            found.append(LineFault(number, fault))
        if len(found) == MOST:
            break
    return found


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
