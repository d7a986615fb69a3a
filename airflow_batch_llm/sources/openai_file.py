"""Ready-made OpenAI batch files: every line is a request of the provider's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.jsonl import has_nonfinite
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.declared import Context, Renderer, conn_id_argument, path_argument, plain_argument
from airflow_batch_llm.exceptions import SourceError
from airflow_batch_llm.prompts import CompiledPrompt
from airflow_batch_llm.sources.base import MAX_FAULTS, RowOptions, Source, listed
from airflow_batch_llm.sources.json_lines import json_objects
from airflow_batch_llm.sources.locations import open_input
from airflow_batch_llm.sources.shaping import AS_THEY_ARE, redacted, sampled
from airflow_batch_llm.sources.storable import has_half_surrogate

_NOT_REDACTED = frozenset({"custom_id", "method", "url"})


class OpenAIBatchFile(Source):
    """A JSON lines file in OpenAI's batch format: ``{"custom_id", "method", "url", "body"}`` a line.

    Bodies are sent as they are, complete with their model. The ids are checked by the engine. ``redact`` is
    given the whole line and may change its body only; there are no columns to carry.

    :param path: local path or address, also gzipped (``.gz``). Templated.
    :param conn_id: Airflow connection of the storage.
    """

    key = ("custom_id",)

    def __init__(self, path: str, *, conn_id: str | None = None) -> None:
        self.path = path_argument(path, "OpenAIBatchFile's path")
        self.conn_id = None if conn_id is None else conn_id_argument(conn_id, "OpenAIBatchFile's conn_id")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        path = plain_argument(self.path, "OpenAIBatchFile's path")
        return {"type": "openai_batch_file", "path": path, "conn_id": self.conn_id}

    def _templated(self) -> Iterable[Any]:
        return (self.path,)

    def resolve(self, context: Context) -> OpenAIBatchReader:
        """Render the path; nothing is read yet."""
        return OpenAIBatchReader(Renderer(context).text(self.path, "the source's path"), self.conn_id)


class OpenAIBatchReader:
    """The requests of a ready-made file."""

    native = True

    def __init__(self, path: str, conn_id: str | None) -> None:
        self._path, self._conn_id = path, conn_id
        self._endpoint: str | None = None

    @property
    def id_origin(self) -> str:
        """Say what the ids are, for errors about ids."""
        return f"ids are the custom_id of {self._path}, counted by line"

    @property
    def endpoint(self) -> str | None:
        """The url of the file's lines; reads up to the first one that has any. None for an empty file."""
        if self._endpoint is None:
            with open_input(self._path, self._conn_id) as file:
                for _, line in json_objects(file, self._path):
                    if isinstance(line.get("url"), str):
                        self._endpoint = line["url"]
                        break
        return self._endpoint

    def place_name(self, place: int) -> str:
        """Return how errors name a line."""
        return f"line {place}"

    def drafts(
        self, prompt: CompiledPrompt | None = None, options: RowOptions = AS_THEY_ARE
    ) -> Iterator[Draft]:
        """Yield the requests.

        A body with a number that is not finite, or with half a surrogate pair, carries a fault and the
        rest goes on.

        :raises SourceError: a prompt or columns to carry are given; lines that are not JSON; lines without a
            body, of another method than POST, of another url than the first, or without a model. The first 20
            are named.
        """
        if prompt is not None:
            raise SourceError(f"{self._path} holds ready-made requests and takes no prompt")
        if options.carry:
            raise SourceError(
                f"{self._path} holds ready-made requests, which have no columns to carry "
                f"({', '.join(map(repr, options.carry))})"
            )
        endpoint = self.endpoint
        faults: list[str] = []
        with open_input(self._path, self._conn_id) as file:
            for number, line in json_objects(file, self._path):
                if options.redact is not None:
                    where = f"{self._path}, line {number}"
                    line = redacted(options.redact, line, set(line) & _NOT_REDACTED, where)
                fault = _fault(line, endpoint)
                if fault is not None:
                    faults.append(f"line {number}: {fault}")
                    if len(faults) > MAX_FAULTS:
                        break
                elif not faults:
                    yield from sampled(_draft(number, line), options.samples)
        if faults:
            more = len(faults) > MAX_FAULTS
            raise SourceError(f"{self._path}: {listed(faults[:MAX_FAULTS], more=more)}")


def _fault(line: Mapping[str, Any], endpoint: str | None) -> str | None:
    """Say what makes the line no request, None if it is one."""
    if line.get("method") != "POST":
        return "its method is not POST"
    url = line.get("url")
    if not isinstance(url, str) or not url.startswith("/"):
        return "it has no url such as /v1/chat/completions"
    if url != endpoint:
        return "its url is not that of the first line"
    body = line.get("body")
    if not isinstance(body, dict):
        return "it has no body"
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return "its body names no model"
    return None


def _draft(number: int, line: Mapping[str, Any]) -> Draft:
    custom_id, body = line.get("custom_id"), line["body"]
    draft = Draft(number, custom_id, body, key={"custom_id": custom_id}, model=body["model"])
    if has_half_surrogate(body):
        draft.fault = (Verdict.BAD_REQUEST, "unencodable_text")
    elif has_nonfinite(body):
        draft.fault = (Verdict.BAD_REQUEST, "non_finite_number")
    if draft.fault is not None:
        draft.body = None
    return draft
