"""Responses: what the body asks, what the simulated model's body looks like, and spoiled bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from airflow_batch_llm.server.replies import (
    BadBody,
    answered,
    check_context,
    check_numbers,
    digest_of,
    failed_in_200,
    read_body,
    size_of,
)
from airflow_batch_llm.server.scenario import RowRule
from airflow_batch_llm.server.simulated import REFUSAL, Ask, Said, beginning, say, tokens_of
from airflow_batch_llm.server.wire import Reply, Request

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_ROLES = frozenset({"user", "assistant", "system", "developer"})


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Item(msgspec.Struct):
    type: str = "message"
    role: str | None = None
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or () if part.text)


class _Format(msgspec.Struct):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    parameters: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    model: str
    input: str | list[_Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    text: _Text | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None

    def items(self) -> list[_Item]:
        return [_Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    def words(self) -> list[str]:
        return [self.instructions or "", *(item.text() for item in self.items())]

    def last_user(self) -> str:
        for item in reversed(self.items()):
            if item.role == "user":
                return item.text()
        return self.items()[-1].text()


_body = msgspec.json.Decoder(_Body)


class Responses:
    """The endpoint ``/v1/responses``."""

    piece = 1_000
    spoils = frozenset({"error_in_200", "truncated", "content_filter", "refusal", "empty", "invalid_json"})

    def prompt(self, body: bytes) -> str:
        try:
            return "\n".join(filter(None, _body.decode(body).words()))
        except msgspec.MsgspecError:
            return ""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request with the simulated model."""

        def answer(raw: bytes) -> tuple[Any, int, int]:
            body = _read(raw)
            tool = _forced_tool(body)
            said = say(_ask(body, tool))
            return _answer(raw, body, tool, said, created), said.input_tokens, said.output_tokens

        return answered(request, "text.format.schema", answer)

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        if rule.fault == "error_in_200":
            return failed_in_200(rule)
        body = _any.decode(reply.body)
        text = "".join(part.get("text") or "" for part in _parts_of(body))
        content, reason = _SPOILED[rule.fault](text)
        status = "incomplete" if reason else "completed"
        tokens = tokens_of(sum(size_of(part.get("text", "")) for part in content)) if content else 0
        usage = body.get("usage") or {}
        usage |= {"output_tokens": tokens, "total_tokens": usage.get("input_tokens", 0) + tokens}
        body |= {
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [_message(body.get("id", "").removeprefix("resp_"), content, status)],
            "usage": usage,
        }
        return Reply(200, _encoder.encode(body), reply.input_tokens, tokens)


def _parts_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        part for item in body["output"] if item.get("type") == "message" for part in item.get("content") or ()
    ]


_SPOILED: dict[str, Callable[[str], tuple[list[dict[str, Any]], str | None]]] = {
    "truncated": lambda text: ([_output_text(beginning(text))], "max_output_tokens"),
    "content_filter": lambda text: ([], "content_filter"),
    "refusal": lambda text: ([{"type": "refusal", "refusal": REFUSAL}], None),
    "empty": lambda text: ([_output_text("")], None),
    "invalid_json": lambda text: ([_output_text('{"simulated": ')], None),
}


def _read(raw: bytes) -> _Body:
    body = read_body(_body, raw)
    if not body.input:
        raise BadBody("input is empty.", code="empty_array", param="input")
    for item in body.items():
        if item.type == "message" and item.role not in _ROLES:
            raise BadBody("A message has no role, or an unknown one.", code="invalid_value", param="input")
    check_numbers(body.temperature, max_output_tokens=body.max_output_tokens)
    return body


def _ask(body: _Body, tool: _Tool | None) -> Ask:
    size = sum(map(size_of, body.words()))
    check_context(size, "input")
    wanted = body.text.format if body.text is not None else None
    schema, as_json = None, wanted is not None and wanted.type == "json_object"
    if tool is not None:
        schema = tool.parameters or {"type": "object"}
    elif wanted is not None and wanted.type == "json_schema":
        if wanted.schema is None or not wanted.name:
            raise BadBody(
                "A format needs a name and a schema.", code="missing_required_parameter", param="text.format"
            )
        schema = wanted.schema
    return Ask(size, body.last_user(), schema, as_json, body.max_output_tokens)


def _forced_tool(body: _Body) -> _Tool | None:
    """Return the function that must be called: the one named, or the first where any is required."""
    functions = [tool for tool in body.tools or () if tool.type == "function"]
    for tool in functions:
        if not tool.name:
            raise BadBody("A function has no name.", code="missing_required_parameter", param="tools")
    if not functions or body.tool_choice in (None, "auto", "none"):
        return None
    if body.tool_choice == "required":
        return functions[0]
    named = body.tool_choice.get("name") if isinstance(body.tool_choice, dict) else None
    for tool in functions:
        if tool.name == named:
            return tool
    raise BadBody("tool_choice names no tool.", code="invalid_value", param="tool_choice")


def _answer(raw: bytes, body: _Body, tool: _Tool | None, said: Said, created: int) -> dict[str, Any]:
    digest = digest_of(raw)
    asked: dict[str, Any] = _any.decode(raw)
    status = "completed" if said.whole else "incomplete"
    if tool is None:
        item = _message(digest, [_output_text(said.text)], status)
    else:
        call = {"call_id": f"call_{digest}", "name": tool.name, "arguments": said.text}
        item = {"id": f"fc_{digest}", "type": "function_call", "status": status, **call}
    return {
        "id": f"resp_{digest}",
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None if said.whole else {"reason": "max_output_tokens"},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": asked.get("metadata") or {},
        "model": body.model,
        "output": [item],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": asked.get("store", True),
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools") or [],
        "top_p": asked.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": {
            "input_tokens": said.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": said.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said.input_tokens + said.output_tokens,
        },
    }


def _message(digest: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": f"msg_{digest}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
