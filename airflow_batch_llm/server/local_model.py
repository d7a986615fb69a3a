"""The local model as an upstream: llama.cpp in this process (package ``xllamacpp``), several texts at once.

Nothing here imports it before a server is started with ``--local-model``. llama.cpp's own server listens on
a socket in a folder that is removed as soon as it is open: the model is reached through this server only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.local_model_file import INSTALL, MODEL, model_file
from airflow_batch_llm.server.local_model_text import TextAsk, Unanswerable, read_ask
from airflow_batch_llm.server.replies import error_reply
from airflow_batch_llm.server.settings import LocalModelSettings
from airflow_batch_llm.server.upstreams import UpstreamClosed
from airflow_batch_llm.server.wire import Reply, Request

_encoder = msgspec.json.Encoder()

#: Answers as ``json.dumps`` without spaces writes them, as examples in a prompt are written. Where white
#: space is free, a small model goes on with nothing else.
_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}

#: No JSON text begins like this; see :meth:`Llama.follows`.
_NEVER_JSON = " zebra"


class Llama:
    """llama.cpp with one model loaded.

    :param parallel: texts that are continued at the same time.
    :param context: tokens of one text, prompt and answer together.
    :param threads: None: as many as there are cores, but one. Its threads wait for each other by spinning:
        where another process takes the core of one of them, all are slowed down (three times, measured).
    :raises ConfigurationError: ``xllamacpp`` is not installed, or it cannot load the file.
    """

    def __init__(self, path: Path, *, parallel: int, context: int, threads: int | None = None) -> None:
        try:
            import xllamacpp
        except ImportError as e:
            raise ConfigurationError(f"llama.cpp is not installed; {INSTALL}") from e
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = parallel
        params.n_ctx = context * parallel
        threads = threads or max(1, len(os.sched_getaffinity(0)) - 1)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # Whole windows are kept, so that examples which many prompts begin with are read once a sequence.
        params.swa_full = True
        params.cache_ram_mib = 0
        params.verbosity = -1  # its log shows prompts
        params.ui = False
        with tempfile.TemporaryDirectory(prefix="batch-llm-") as folder:
            params.hostnames = [str(Path(folder) / "llama.sock")]
            try:
                self._server: Any = xllamacpp.Server(params)
            except RuntimeError as e:
                raise ConfigurationError(f"llama.cpp cannot load {path}") from e
        self._followed: dict[bytes, bool] = {}
        self._lock = threading.Lock()

    def go_on(self, ask: TextAsk, give_up: Callable[[], bool]) -> Mapping[str, Any] | None:
        """Continue a text; None where ``give_up`` said so in between.

        :return: ``text``, ``finish_reason`` and ``usage``, or ``error`` as llama.cpp tells it.
        """
        order: dict[str, Any] = {
            "prompt": ask.text,
            "max_tokens": -1 if ask.max_tokens is None else ask.max_tokens,
            "stop": list(ask.stop),
            "stream": True,
            "stream_options": {"include_usage": True},
            **ask.sampling,
        }
        if ask.schema is not None:
            order["json_schema"] = {**ask.schema, "x-guidance": _COMPACT}
        answer = _Answer(give_up)
        self._server.handle_completions(order, answer.add)
        return answer.result()

    def follows(self, schema: Mapping[str, Any]) -> bool:
        """Say whether answers can be held to the schema.

        llama.cpp drops a grammar that it cannot make, without a word. So it is asked, once for each schema,
        for one token where another that begins no JSON is made near certain: only a grammar can forbid it.
        """
        digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).digest()
        with self._lock:
            if digest not in self._followed:
                order = {
                    "prompt": "Output:",
                    "max_tokens": 1,
                    "temperature": 0.0,
                    "logit_bias": [[_NEVER_JSON, 100.0]],
                    "json_schema": {**schema, "x-guidance": _COMPACT},
                }
                said = self._server.handle_completions(order)
                self._followed[digest] = "choices" in said and said["choices"][0]["text"] != _NEVER_JSON
            return self._followed[digest]

    def close(self) -> None:
        """Free the model."""
        self._server = None


class _Answer:
    """Collects what llama.cpp streams; :meth:`add` returns True to stop it."""

    def __init__(self, give_up: Callable[[], bool]) -> None:
        self._give_up = give_up
        self._given_up = False
        self._texts: list[str] = []
        self._last: dict[str, Any] = {}

    def add(self, chunk: Any) -> bool:
        for part in chunk if isinstance(chunk, list) else [chunk]:
            self._last |= part
            for choice in part.get("choices") or ():
                self._texts.append(choice["text"])
                self._last["finish_reason"] = choice["finish_reason"]
        self._given_up = self._give_up()
        return self._given_up

    def result(self) -> Mapping[str, Any] | None:
        whole = self._last.get("finish_reason") is not None or "error" in self._last
        if self._given_up and not whole:
            return None
        return {**self._last, "text": "".join(self._texts)}


class LocalModelUpstream:
    """Answers chat completions and completions with the local model.

    A row that takes longer than ``timeout`` seconds is a ``request_timeout``.

    :raises ConfigurationError: the extra ``local`` is not installed, or the model cannot be loaded.
    """

    def __init__(self, settings: LocalModelSettings, *, timeout: float) -> None:
        self.piece = 2 * settings.parallel
        self._name = settings.file.stem if settings.file is not None else MODEL
        self._timeout = timeout
        self._closed = False
        self._llama = Llama(
            settings.file or model_file(),
            parallel=settings.parallel,
            context=settings.context,
            threads=settings.threads,
        )
        self._pool = ThreadPoolExecutor(settings.parallel, thread_name_prefix="local-model")

    def answer(self, endpoint: str, requests: Sequence[Request], created: int) -> list[Reply]:
        return list(self._pool.map(lambda request: self._answer(endpoint, request, created), requests))

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self._name, "object": "model", "created": 0, "owned_by": "local"}]

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        self._llama.close()

    def _answer(self, endpoint: str, request: Request, created: int) -> Reply:
        try:
            ask = read_ask(endpoint, request.body)
            if ask.schema is not None and not self._llama.follows(ask.schema):
                raise Unanswerable(
                    "No grammar can be made of the schema.",
                    code="invalid_json_schema",
                    param="response_format",
                )
        except Unanswerable as e:
            return error_reply(400, str(e), code=e.code, param=e.param)
        until = time.monotonic() + self._timeout
        said = self._llama.go_on(ask, lambda: self._closed or time.monotonic() > until)
        if self._closed:
            raise UpstreamClosed
        if said is None:
            return Reply(0)
        if "error" in said:
            return _refused(said["error"])
        return self._reply(endpoint, request, said, created)

    def _reply(self, endpoint: str, request: Request, said: Mapping[str, Any], created: int) -> Reply:
        chat = endpoint == CHAT
        message = {"role": "assistant", "content": said["text"].strip(), "refusal": None}
        choice = {
            "index": 0,
            **({"message": message} if chat else {"text": said["text"]}),
            "logprobs": None,
            "finish_reason": said["finish_reason"],
        }
        digest = hashlib.blake2b(request.body, digest_size=12).hexdigest()
        body = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{digest}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": self._name,
            "choices": [choice],
            "usage": said["usage"],
        }
        usage = said["usage"]
        return Reply(200, _encoder.encode(body), usage["prompt_tokens"], usage["completion_tokens"])


def _refused(error: Mapping[str, Any]) -> Reply:
    """Return a failed row; llama.cpp's own words are left out, they may quote the prompt."""
    if error.get("type") == "exceed_context_size_error":
        message = f"The text is longer than the context of {error.get('n_ctx')} tokens."
        return error_reply(400, message, code="context_length_exceeded", param="messages")
    if error.get("code") == 400:
        return error_reply(400, "llama.cpp refuses the request.", code="invalid_value")
    return error_reply(500, "llama.cpp failed.", code="local_model_failed", kind="server_error")
