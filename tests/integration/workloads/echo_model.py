"""An OpenAI-compatible chat server on loopback that answers with exactly what the last message said."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback_server import LoopbackServer


class EchoModel(LoopbackServer):
    """``heard`` holds the text of every last user message, as it came over the wire."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        super().__init__(self._handler())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                said = asked["messages"][-1]["content"]
                model.heard.append(said)
                message = {"role": "assistant", "content": said}
                body: dict[str, Any] = {
                    "id": "c",
                    "object": "chat.completion",
                    "model": asked["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
                }
                payload = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler
