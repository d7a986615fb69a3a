"""A batch provider that plays a recorded case over real HTTP.

The first batch that is created (or the first few) ends as the case says: its batch object, its result files
byte for byte, except that the case's ids are replaced by the ids that were really sent for those requests.
Every later batch is answered in full, so that a job settles.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer

FILE_IDS = {"output_file_id": "output.jsonl", "error_file_id": "errors.jsonl"}


class Refusal(Exception):
    """The provider says no."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


def strict_json(line: bytes) -> Any:
    """Parse a line as a strict reader does: UTF-8, no NaN, no Infinity, no half of a surrogate pair."""

    def refuse(name: str) -> Any:
        raise Refusal(400, f"not_json_{name}")

    try:
        value = json.loads(line.decode("utf-8"), parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as e:
        raise Refusal(400, "invalid_json_line") from e
    return value


def strict_lines(data: bytes) -> list[Any]:
    """Read an upload; nothing is forgiven.

    :raises Refusal: a byte order mark at the start, a carriage return, an empty line, a last line without
        its end, a line that is not strict JSON.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise Refusal(400, "byte_order_mark")
    if b"\r" in data:
        raise Refusal(400, "carriage_return")
    if not data.endswith(b"\n"):
        raise Refusal(400, "last_line_has_no_end")
    lines = data[:-1].split(b"\n")
    if not all(line.strip() for line in lines):
        raise Refusal(400, "empty_line")
    return [strict_json(line) for line in lines]


@dataclass
class Replay:
    """What the first batch comes to.

    :param batch: fields of the batch object that differ from "completed, no files".
    :param files: file id -> bytes, with the case's own ids.
    :param texts: the case's id -> text of the request's last message, which tells it among those uploaded.
    """

    batch: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


class ReplayProvider(LoopbackServer):
    """``/v1/files`` and ``/v1/batches`` on loopback.

    :param replay: how the first batch ends; None answers it in full, too.
    :param replays: how many batches end so.
    :param piece: how many bytes of a reply are sent at a time.
    :param refusals: (status, code) with which create calls are refused, one each, before any is taken.
    :param max_bytes: an upload above it is refused with 413.
    :param max_requests: a batch above it is refused with 400.
    :param row: makes the answered row of a wire id, for batches that are answered in full.
    """

    api_key = "test-key"

    def __init__(
        self,
        replay: Replay | None = None,
        *,
        max_bytes: int | None = None,
        max_requests: int | None = None,
        row: Callable[[str], dict[str, Any]] | None = None,
        replays: int = 1,
        refusals: Sequence[tuple[int, str]] = (),
        piece: int | None = None,
    ) -> None:
        self.piece = piece
        self.replay, self.row = replay, row or answer
        self.replays, self.refusals = replays, list(refusals)
        self.max_bytes, self.max_requests = max_bytes, max_requests
        #: (method, path below /v1, status) of every call, in order.
        self.calls: list[tuple[str, str, int]] = []
        self.uploads: list[bytes] = []
        #: When each create call came, in seconds.
        self.created_at: list[float] = []
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        super().__init__(_handler(self))

    # -- what was seen -------------------------------------------------------------------------------
    def sent(self) -> list[list[str]]:
        """The texts of each upload's requests, in order."""
        return [[text_of(line) for line in strict_lines(data)] for data in self.uploads]

    def statuses(self) -> Counter[int]:
        """How often each HTTP status was given."""
        return Counter(status for _, _, status in self.calls)

    def requests(self, method: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """The calls, as the local server lists them; ``path`` as in /v1/batches."""
        return [
            {"method": m, "path": f"/v1{p}", "status": status}
            for m, p, status in self.calls
            if method in (None, m) and path in (None, f"/v1{p}")
        ]

    def summary(self) -> dict[str, int]:
        """How many requests were answered, and how many of them in more than one batch."""
        good: Counter[str] = Counter()
        for batch in self._batches.values():
            named = [batch.get(name) for name in FILE_IDS]
            good.update(_answered(b"".join(self._files.get(name, b"") for name in named if _is_text(name))))
        return {"answered": len(good), "answered_twice": sum(n > 1 for n in good.values())}

    # -- what is served ------------------------------------------------------------------------------
    def serve(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
        """Answer one call and note it."""
        with self._lock:
            try:
                status, reply = 200, self._reply(method, path, body, content_type)
            except Refusal as refusal:
                error = {"message": refusal.code, "type": "invalid_request_error", "code": refusal.code}
                status, reply = refusal.status, _encode({"error": error})
            self.calls.append((method, path, status))
            return status, reply

    def _reply(self, method: str, path: str, body: bytes, content_type: str) -> bytes:
        match method, path.strip("/").split("/"):
            case "POST", ["files"]:
                return _encode(self._store(_uploaded(body, content_type)))
            case "GET", ["files", file_id] if file_id in self._files:
                return _encode({"id": file_id, "object": "file", "bytes": len(self._files[file_id])})
            case "GET", ["files", file_id, "content"] if file_id in self._files:
                return self._files[file_id]
            case "DELETE", ["files", file_id] if file_id in self._files:
                return _encode({"id": file_id, "object": "file", "deleted": True})
            case "POST", ["batches"]:
                return _encode(self._create(json.loads(body)))
            case "GET", ["batches"]:
                return _encode(
                    {"object": "list", "data": list(self._batches.values())[::-1], "has_more": False}
                )
            case "GET", ["batches", batch_id] if batch_id in self._batches:
                return _encode(self._batches[batch_id])
        raise Refusal(404, "not_found")

    def _store(self, data: bytes) -> dict[str, Any]:
        if self.max_bytes is not None and len(data) > self.max_bytes:
            raise Refusal(413, "file_too_large")
        strict_lines(data)
        self.uploads.append(data)
        file_id = f"file-in-{len(self.uploads)}"
        self._files[file_id] = data
        return {"id": file_id, "object": "file", "bytes": len(data), "purpose": "batch"}

    def _create(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self.created_at.append(time.monotonic())
        if self.refusals:
            raise Refusal(*self.refusals.pop(0))
        lines = strict_lines(self._files[order["input_file_id"]])
        if self.max_requests is not None and len(lines) > self.max_requests:
            raise Refusal(400, "too_many_requests_in_file")
        replayed = self.replay if len(self._batches) < self.replays else None
        end = self._replayed(replayed, lines) if replayed is not None else self._full(lines)
        batch = {
            "id": f"batch_t{len(self._batches) + 1}",
            "object": "batch",
            "endpoint": order["endpoint"],
            "completion_window": order["completion_window"],
            "status": "completed",
            "errors": None,
            "created_at": 1_700_000_000 + len(self._batches),
            **end,
            "metadata": order.get("metadata"),
            "input_file_id": order["input_file_id"],
        }
        self._batches[batch["id"]] = batch
        return batch

    def _replayed(self, replay: Replay, lines: Sequence[Any]) -> dict[str, Any]:
        wire_ids = {text_of(line): line["custom_id"] for line in lines}
        for file_id, data in replay.files.items():
            for case_id, text in replay.texts.items():
                sent = wire_ids.get(text, "never-sent").encode()
                for name in (b"custom_id", b"recordId"):
                    data = data.replace(b'"%s":"%s"' % (name, case_id.encode()), b'"%s":"%s"' % (name, sent))
            self._files[file_id] = data
        return dict(replay.batch)

    def _full(self, lines: Sequence[Any]) -> dict[str, Any]:
        file_id = f"file-out-{len(self._batches) + 1}"
        self._files[file_id] = b"".join(_encode(self.row(line["custom_id"])) + b"\n" for line in lines)
        counts = {"total": len(lines), "completed": len(lines), "failed": 0}
        return {"output_file_id": file_id, "error_file_id": None, "request_counts": counts}


def answer(custom_id: str, text: str = "answered") -> dict[str, Any]:
    """A row with an answer, as the provider writes it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    body = {"id": "cc", "object": "chat.completion", "model": "m-1", "choices": [choice], "usage": usage}
    response = {"status_code": 200, "request_id": "rq", "body": body}
    return {"id": "batch_req", "custom_id": custom_id, "response": response, "error": None}


def failure(custom_id: str, status: int, error: Mapping[str, Any]) -> dict[str, Any]:
    """A row that the provider refused, as it stands in the error file."""
    response = {"status_code": status, "request_id": "rq", "body": {"error": dict(error)}}
    return {"id": "batch_req", "custom_id": custom_id, "response": response, "error": None}


def unexecuted(custom_id: str, code: str) -> dict[str, Any]:
    """A row that never ran, as it stands in the error file."""
    return {
        "id": "batch_req",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": "never ran"},
    }


def as_lines(*rows: Mapping[str, Any]) -> bytes:
    """Rows as a file."""
    return b"".join(_encode(row) + b"\n" for row in rows)


def text_of(line: Mapping[str, Any]) -> str:
    """The text of a request's last message."""
    text: str = line["body"]["messages"][-1]["content"]
    return text


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


_GOOD = re.compile(
    rb'"custom_id":"([^"]*)","response":\{"status_code":200,[^\n]*"content":"[^"\\\s][^\n]*"finish_reason":"stop"'
)


def _answered(data: bytes) -> set[str]:
    """The ids of the answers (some text) in result files, of which some lines may be no JSON at all."""
    return {found.decode() for found in _GOOD.findall(data)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _uploaded(body: bytes, content_type: str) -> bytes:
    """Return the file of a multipart form, byte for byte."""
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    for part in body.split(b"--" + boundary):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            return content.removesuffix(b"\r\n")
    raise Refusal(400, "no_file")


def _handler(provider: ReplayProvider) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self._body()
            path = self.path.partition("?")[0].removeprefix("/v1")
            status, reply = provider.serve(self.command, path, body, self.headers.get("content-type", ""))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            piece = provider.piece or len(reply) or 1
            for start in range(0, len(reply), piece):
                self.wfile.write(reply[start : start + piece])

        do_GET = do_POST = do_DELETE = _serve

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("content-length") or 0))

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
