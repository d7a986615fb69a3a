"""Forwarding to a real HTTP server that stands for vLLM or llama.cpp."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.local_server import LocalServer
from tests.unit.server.api import Api, answer, line


class Engine(BaseHTTPRequestHandler):
    """Answers in several lines of JSON; fails where the prompt says so."""

    seen: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        self._send(200, b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}')

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers["Authorization"]))
        if self.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.5]}]
            usage = {"prompt_tokens": 3, "total_tokens": 3}
            self._send(200, json.dumps({"object": "list", "data": data, "usage": usage}).encode())
            return
        if self.path == "/v1/responses":
            usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
            body = {"object": "response", "status": "completed", "output": [], "usage": usage}
            self._send(200, json.dumps(body).encode())
            return
        text = request["messages"][0]["content"]
        if text == "refuse":
            self._send(400, b'{"error": {"message": "no", "type": "BadRequestError", "code": 400}}')
        elif text == "html":
            self._send(502, b"<html>")
        else:
            message = {"role": "assistant", "content": f"heard {text}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            self._send(200, json.dumps({"choices": [choice], "usage": usage}, indent=2).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def engine() -> Iterator[str]:
    Engine.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_rows_are_answered_by_the_upstream(engine: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BATCH_LLM_UPSTREAM_KEY", "secret")
    args = ("--upstream", engine, "--upstream-concurrency", "4")
    scenario = {"rows": [{"fault": "server_error", "match": {"contains": "spare"}}]}
    with LocalServer(tmp_path, args=args, scenario=scenario) as server:
        api = Api(server)
        assert [model["id"] for model in api.http.get("/models").json()["data"]] == ["tiny"]
        good = b"".join(line(f"r-{i}", f"text {i}") for i in range(10))
        batch = api.run(good + line("r-bad", "refuse") + line("r-html", "html") + line("r-spared", "spare"))
        assert [answer(row) for row in api.output(batch)] == [f"heard text {i}" for i in range(10)]
        assert [row["response"]["status_code"] for row in api.errors(batch)] == [400, 502, 500]
        assert batch["usage"]["output_tokens"] == 40
        assert Engine.seen == [("/v1/chat/completions", "Bearer secret")] * 12


def test_every_endpoint_is_forwarded_to_its_own_path(engine: str, tmp_path) -> None:
    with LocalServer(tmp_path, args=("--upstream", engine)) as server:
        api = Api(server)
        for endpoint, output_tokens in (("/v1/embeddings", 0), ("/v1/responses", 4)):
            body = {"model": "m", "input": "x"}
            request = {"custom_id": "r-1", "method": "POST", "url": endpoint, "body": body}
            batch = api.run(json.dumps(request).encode() + b"\n", endpoint=endpoint)
            assert [row["response"]["status_code"] for row in api.output(batch)] == [200]
            usage = batch["usage"]
            assert (usage["input_tokens"], usage["output_tokens"]) == (3, output_tokens)
        assert [path for path, _ in Engine.seen] == ["/v1/embeddings", "/v1/responses"]


def test_an_upstream_that_cannot_be_reached_times_the_row_out(tmp_path, mocker) -> None:
    from airflow_batch_llm.server.upstreams import ForwardingUpstream
    from airflow_batch_llm.server.wire import Request

    mocker.patch("tenacity.nap.time.sleep")
    upstream = ForwardingUpstream("http://127.0.0.1:9/v1", key=None, concurrency=2, timeout=5)
    replies = upstream.answer("/v1/chat/completions", [Request(1, "a", "m", b"{}")] * 2, 0)
    assert [reply.status for reply in replies] == [0, 0]
    upstream.close()
