"""A model server for the tests: what it says quotes what it was asked, as careless providers do."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer


class TalkativeModel(LoopbackServer):
    """An OpenAI-compatible chat server on loopback.

    A prompt that holds ``refuse:`` gets a 400 that quotes the whole prompt, one with ``garble:`` an
    answer that fits no schema, one with ``together:`` a 400 with ``shared`` as its message; all others
    get a label and the note.

    :param note: stands in every answer.
    :param shared: message of the errors that are the same for every row.
    """

    def __init__(self, note: str, shared: str) -> None:
        self._note, self._shared = note, shared
        super().__init__(self._handler())

    def _reply(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prompt = "\n".join(message["content"] for message in asked["messages"])
        if "refuse:" in prompt:
            return 400, _error(f"Cannot process {prompt!r}")
        if "together:" in prompt:
            return 400, _error(self._shared)
        answer = {"label": "bug", "note": self._note}
        content = f"Well, {self._note}" if "garble:" in prompt else json.dumps(answer)
        message = {"role": "assistant", "content": content}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {
            "id": "c",
            "object": "chat.completion",
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, body = model._reply(asked)
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "bad"}}
