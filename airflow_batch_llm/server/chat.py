"""Chat completions: what the body asks, what the simulated model's body looks like, and spoiled bodies."""

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
from airflow_batch_llm.server.simulated import REFUSAL, Ask, Said, beginning, say, think, tokens_of
from airflow_batch_llm.server.wire import Reply, Request

_encoder = msgspec.json.Encoder()
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or ())


class _JsonSchema(msgspec.Struct):
    name: str
    schema: dict[str, Any] | None = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    function: _Function
    type: str = "function"


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    response_format: _Format | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None

    def most(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def last_user(self) -> str:
        for message in reversed(self.messages):
            if message.role == "user":
                return message.text()
        return self.messages[-1].text()


_body = msgspec.json.Decoder(_Body)


class ChatCompletions:
    """The endpoint ``/v1/chat/completions``."""

    piece = 1_000
    spoils = frozenset({"error_in_200", "truncated", "content_filter", "refusal", "empty", "invalid_json"})

    def prompt(self, body: bytes) -> str:
        try:
            return "\n".join(message.text() for message in _body.decode(body).messages)
        except msgspec.MsgspecError:
            return ""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request with the simulated model."""

        def answer(raw: bytes) -> tuple[Any, int, int]:
            body = _read(raw)
            tool = _forced_tool(body)
            said = say(_ask(body, tool))
            thinking, thought = _thought(body, said)
            found = _answer(raw, body, tool, said, created)
            if thinking:
                _add_thinking(found, thinking, thought)
            return found, said.input_tokens, said.output_tokens + thought

        return answered(request, "response_format", answer)

    def spoil(self, reply: Reply, rule: RowRule) -> Reply:
        if rule.fault == "error_in_200":
            return failed_in_200(rule)
        body = _any.decode(reply.body)
        choice = body["choices"][0]
        _SPOILED[rule.fault](choice)
        message = choice["message"]
        tokens = tokens_of(len((message.get("content") or "").encode())) if message.get("content") else 0
        usage = body.get("usage") or {}
        usage |= {"completion_tokens": tokens, "total_tokens": usage.get("prompt_tokens", 0) + tokens}
        usage.pop("completion_tokens_details", None)
        return Reply(200, _encoder.encode({**body, "usage": usage}), reply.input_tokens, tokens)


def _truncate(choice: dict[str, Any]) -> None:
    choice["finish_reason"] = "length"
    choice["message"]["content"] = beginning(choice["message"].get("content") or "")


def _filter(choice: dict[str, Any]) -> None:
    choice["finish_reason"] = "content_filter"
    choice["message"]["content"] = None


def _refuse(choice: dict[str, Any]) -> None:
    choice["message"] |= {"content": None, "refusal": REFUSAL}


def _empty(choice: dict[str, Any]) -> None:
    choice["message"]["content"] = ""


def _break_json(choice: dict[str, Any]) -> None:
    choice["message"]["content"] = '{"simulated": '


_SPOILED: dict[str, Callable[[dict[str, Any]], None]] = {
    "truncated": _truncate,
    "content_filter": _filter,
    "refusal": _refuse,
    "empty": _empty,
    "invalid_json": _break_json,
}


def _read(raw: bytes) -> _Body:
    body = read_body(_body, raw)
    if not body.messages:
        raise BadBody("messages is empty.", code="empty_array", param="messages")
    check_numbers(
        body.temperature, max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens
    )
    return body


def _ask(body: _Body, tool: _Tool | None) -> Ask:
    size = sum(size_of(message.text()) for message in body.messages)
    check_context(size, "messages")
    schema, as_json = None, False
    wanted = body.response_format
    if tool is not None:
        schema = tool.function.parameters or {"type": "object"}
    elif wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise BadBody(
                "json_schema is missing.", code="missing_required_parameter", param="response_format"
            )
        schema = wanted.json_schema.schema or {"type": "object"}
    elif wanted is not None:
        as_json = wanted.type == "json_object"
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Ask(size, body.last_user(), schema, as_json, body.most(), tuple(filter(None, stop)))


def _thought(body: _Body, said: Said) -> tuple[str, int]:
    """Return what was thought, and its tokens; nothing where it was not asked for, or no tokens are left."""
    if body.reasoning_effort in (None, "none"):
        return "", 0
    thinking = think(body.last_user())
    tokens, most = tokens_of(size_of(thinking)), body.most()
    return (thinking, tokens) if most is None or said.output_tokens + tokens <= most else ("", 0)


def _add_thinking(answer: dict[str, Any], thinking: str, tokens: int) -> None:
    """Show it as vLLM does, and count it as OpenAI does: among the tokens of the answer."""
    answer["choices"][0]["message"]["reasoning_content"] = thinking
    usage = answer["usage"]
    usage["completion_tokens"] += tokens
    usage["total_tokens"] += tokens
    usage["completion_tokens_details"]["reasoning_tokens"] = tokens


def _forced_tool(body: _Body) -> _Tool | None:
    """Return the tool that must be called: the one named, or the first where any is required."""
    if not body.tools or body.tool_choice in (None, "auto", "none"):
        return None
    if body.tool_choice == "required":
        return body.tools[0]
    named = body.tool_choice.get("function", {}).get("name") if isinstance(body.tool_choice, dict) else None
    for tool in body.tools:
        if tool.function.name == named:
            return tool
    raise BadBody("tool_choice names no tool.", code="invalid_value", param="tool_choice")


def _answer(raw: bytes, body: _Body, tool: _Tool | None, said: Said, created: int) -> dict[str, Any]:
    digest = digest_of(raw)
    message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
    finish = "stop" if said.whole else "length"
    if tool is not None:
        call = {"name": tool.function.name, "arguments": said.text}
        message |= {
            "content": None,
            "tool_calls": [{"id": f"call_{digest}", "type": "function", "function": call}],
        }
        if said.whole and body.tool_choice == "required":
            finish = "tool_calls"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    if said.stopped_by is not None:
        choice["stop_reason"] = said.stopped_by  # vLLM's; OpenAI does not say which it was
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": created,
        "model": body.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": said.input_tokens,
            "completion_tokens": said.output_tokens,
            "total_tokens": said.input_tokens + said.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
