"""Create calls of the Gemini API: read, checked, and refused as a whole for one request that is wrong."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest

from airflow_batch_llm.server.batches import StoredBatch
from airflow_batch_llm.server.files import FileStore, StoredFile
from airflow_batch_llm.server.gemini_lines import GeminiDialect
from airflow_batch_llm.server.gemini_members import (
    Malformed,
    Message,
    anything,
    free_object,
    integer,
    many,
    text,
)
from airflow_batch_llm.server.gemini_objects import FILE_LIFE, GeminiRefusal, invalid, no_file, retry_info
from airflow_batch_llm.server.gemini_uploads import new_id
from airflow_batch_llm.server.scenario import BatchRule, Scenario
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.validation import check_file

#: Most bytes of a create call, with the requests in it.
MAX_BODY = 20 * 1024 * 1024
#: Seconds that results are kept.
RESULTS_LIFE = 42 * 86_400

_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

_BATCH = Message(
    {
        "name": text,
        "model": text,
        "displayName": text,
        "inputConfig": Message(
            {"fileName": text, "requests": Message({"requests": many(anything)})},
        ),
        "priority": integer,
        "webhookConfig": free_object,
    }
)
_CREATE = Message({"batch": _BATCH})


@dataclass(frozen=True, slots=True)
class Order:
    """A create call. Either ``file_id`` is given or ``requests`` are.

    :param endpoint: OpenAI's path for the same.
    """

    endpoint: str
    model: str
    display_name: str
    file_id: str | None
    requests: list[Any] | None


async def read_order(request: HttpRequest, *, endpoint: str, model: str) -> Order:
    """Read a create call. :raises GeminiRefusal: it is too long or cannot be read."""
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY:
            body += chunk
    if size > MAX_BODY:
        raise invalid(f"Request payload size exceeds the limit: {MAX_BODY} bytes.")
    return _order(bytes(body), endpoint, model)


def _order(body: bytes, endpoint: str, model: str) -> Order:
    try:
        batch = _CREATE(_any.decode(body), "body").get("batch", {})
    except Malformed as e:
        raise invalid(str(e), e.place) from e
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise invalid("Invalid JSON payload received.") from e
    source = batch.get("inputConfig", {})
    name: str | None = source.get("fileName")
    requests = source.get("requests", {}).get("requests") if name is None else None
    if name is None and not requests:
        raise invalid("The batch has no requests.", "batch.inputConfig")
    if name is not None and "requests" in source:
        raise invalid("Give a file or requests, not both.", "batch.inputConfig")
    file_id = None if name is None else name.removeprefix("files/")
    return Order(endpoint, model, batch.get("displayName", ""), file_id, requests)


class GeminiCreator:
    """Makes batches of create calls."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = services.limits.of(GeminiDialect.name)

    def create(self, order: Order, version: str) -> StoredBatch:
        """Check everything, then create; the batch is returned as it was before it began.

        :raises GeminiRefusal: the model, the file or a request is wrong, or the scenario says no.
        """
        scenarios, files = self._services.scenarios, self._services.files
        _, scenario = scenarios.current()
        _check_model(order, scenario.unknown_models, version)
        temporary = files.new_temporary()
        try:
            stored = self._input(order) if order.requests is None else None
            path = files.path(stored.id) if stored else _written(order.requests or (), temporary)
            total = self._checked(path, order)
            rule = scenarios.draw_refusal(lambda rule: rule.fault != "expire")
            if rule is not None:
                raise _refusal(rule, order, scenario)
            return self._created(order, stored or self._kept(files, temporary, total), total, scenario)
        finally:
            temporary.unlink(missing_ok=True)

    def _input(self, order: Order) -> StoredFile:
        file_id = order.file_id or ""
        stored = self._services.files.get(file_id)
        if stored is None or stored.dialect != GeminiDialect.name or stored.purpose != "batch":
            raise no_file(file_id)
        if not self._services.scenarios.is_ready(file_id, look=False):
            raise GeminiRefusal(
                400, "FAILED_PRECONDITION", "The file is not in an ACTIVE state and cannot be used."
            )
        return stored

    def _checked(self, path: Path, order: Order) -> int:
        """Return the number of requests."""
        checker = GeminiDialect().checker(order.endpoint, ())
        total, error = check_file(path, checker, self._limits)
        if error is not None:
            place = error.param or "request"
            raise invalid(error.message, place if error.line is None else _place(order, error.line, place))
        return total

    def _kept(self, files: FileStore, temporary: Path, total: int) -> StoredFile:
        return files.add(
            temporary,
            filename="",
            purpose="batch",
            lines=total,
            life=FILE_LIFE,
            file_id=f"inline-{new_id(32)}",
            dialect=GeminiDialect.name,
        )

    def _created(self, order: Order, stored: StoredFile, total: int, scenario: Scenario) -> StoredBatch:
        inline = order.requests is not None
        quirks = scenario.gemini
        batch = self._services.batches.create(
            dialect=GeminiDialect.name,
            endpoint=order.endpoint,
            input_file_id=stored.id,
            completion_window="48h",
            metadata=None,
            output_seconds=RESULTS_LIFE,
            batch_id=new_id(36),
            model=order.model,
            extra={
                "display_name": order.display_name,
                "file": None if inline else stored.id,
                "inline": inline,
                "total": total,
                "error_member": quirks.row_errors,
                "withheld": ["expired"] if quirks.cancelled_results else ["expired", "cancelled"],
            },
        )
        self._services.batches.begin(batch, total=total, model=None)
        if inline:
            # The bytes stay for as long as the batch runs; nobody can ask for them.
            self._services.files.delete(stored.id)
        return batch


def _check_model(order: Order, unknown: Collection[str], version: str) -> None:
    if order.model.removeprefix("models/") in unknown:
        message = f"{order.model} is not found for API version {version}, or cannot be used in batches."
        raise GeminiRefusal(404, "NOT_FOUND", message)


def _written(requests: Collection[Any], target: Path) -> Path:
    with target.open("wb") as file:
        for request in requests:
            file.write(_encoder.encode(request) + b"\n")
    return target


def _place(order: Order, line: int, place: str) -> str:
    if order.requests is None:
        return f"line {line}: {place}"
    return f"batch.inputConfig.requests.requests[{line - 1}].{place}"


def _refusal(rule: BatchRule, order: Order, scenario: Scenario) -> GeminiRefusal:
    if rule.fault == "queue_full":
        return GeminiRefusal(
            rule.status or 429,
            "RESOURCE_EXHAUSTED",
            "The quota of tokens in batches is used up for now.",
            [retry_info(scenario.gemini.retry_delay)],
        )
    message = "The scenario refuses this batch."
    if rule.line is None:
        return invalid(message, rule.param)
    return invalid(message, _place(order, rule.line, rule.param or "request"))
