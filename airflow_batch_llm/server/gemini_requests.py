"""Gemini's requests as OpenAI's bodies, which all that answers understands."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_batch_llm.server.gemini_members import SERVER_TOOLS
from airflow_batch_llm.server.gemini_schemas import json_schema
from airflow_batch_llm.server.translation import (
    BadRequest,
    chat_body,
    data_url,
    file_part,
    function_tool,
    image_part,
    json_format,
    message,
    named_tool,
    text_part,
    tool_call,
)

_encoder = msgspec.json.Encoder()
_ROLES = {"": "user", "user": "user", "model": "assistant", "function": "user", "tool": "user"}
_CHOICES = {
    "AUTO": "auto",
    "VALIDATED": "auto",
    "MODE_UNSPECIFIED": "auto",
    "ANY": "required",
    "NONE": "none",
}
#: Same meaning, other name.
_SETTINGS = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "seed": "seed",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
#: What nobody here can do.
_ELSEWHERE = ("responseLogprobs", "logprobs", "speechConfig", "imageConfig", "audioTranscriptionConfig")
_NO_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")


def chat_of(model: str, request: dict[str, Any]) -> bytes:
    """Return the chat body of a GenerateContentRequest that was read.

    :raises BadRequest: the request contradicts itself, or wants what this server cannot do.
    """
    config = request.get("generationConfig", {})
    if request.get("cachedContent"):
        raise _unsupported("cachedContent")
    tools, choice = _tools(request)
    thinking = config.get("thinkingConfig", {}).get("thinkingLevel")
    return chat_body(
        model,
        _Messages().of(request),
        **_settings(config),
        response_format=_format(config),
        reasoning_effort=thinking.lower() if thinking else None,
        tools=tools,
        tool_choice=choice,
    )


def embeddings_of(model: str, request: dict[str, Any]) -> bytes:
    """Return the embeddings body of an EmbedContentRequest that was read. :raises BadRequest: see above."""
    texts = [_words(part, "content") for part in request["content"].get("parts", ())]
    if not any(texts):
        raise BadRequest("The content is empty.", param="content")
    body: dict[str, Any] = {"model": model, "input": "\n".join(texts)}
    if dimensions := request.get("outputDimensionality"):
        body["dimensions"] = dimensions
    return _encoder.encode(body)


def wants_thoughts(request: dict[str, Any]) -> bool:
    """Say whether the answer is to show what was thought before."""
    config = request.get("generationConfig", {}).get("thinkingConfig", {})
    return bool(config.get("includeThoughts"))


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    for name in _ELSEWHERE:
        if config.get(name):
            raise _unsupported(f"generationConfig.{name}")
    if config.get("candidateCount", 1) != 1:
        raise _unsupported("generationConfig.candidateCount")
    if set(config.get("responseModalities", ())) - {"TEXT"}:
        raise _unsupported("generationConfig.responseModalities")
    return {ours: config[theirs] for theirs, ours in _SETTINGS.items() if theirs in config}


def _format(config: dict[str, Any]) -> dict[str, Any] | None:
    kind = config.get("responseMimeType", "text/plain")
    schemas = [name for name in ("responseSchema", "responseJsonSchema") if name in config]
    if len(schemas) == 2:
        raise BadRequest("Only one of the two schemas may be given.", param="generationConfig.responseSchema")
    if kind == "application/json":
        if not schemas:
            return json_format(None)
        given = config[schemas[0]]
        return json_format(json_schema(given) if schemas[0] == "responseSchema" else given)
    if kind != "text/plain":
        raise _unsupported("generationConfig.responseMimeType")
    if schemas:
        raise BadRequest(
            "A schema needs the response MIME type application/json.",
            param="generationConfig.responseMimeType",
        )
    return None


def _tools(request: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return the tools that may be called, and the choice among them."""
    declared: list[dict[str, Any]] = []
    for tool in request.get("tools", ()):
        for name in (*SERVER_TOOLS, "mcpServers"):
            if name in tool:
                raise _unsupported(f"tools.{name}")
        declared += tool.get("functionDeclarations", ())
    calling = request.get("toolConfig", {}).get("functionCallingConfig", {})
    if not declared:
        return [], None
    allowed = calling.get("allowedFunctionNames")
    if allowed:
        if set(allowed) - {function.get("name") for function in declared}:
            raise BadRequest("An allowed function is not declared.", param="toolConfig.functionCallingConfig")
        declared = [function for function in declared if function.get("name") in allowed]
    choice: Any = _CHOICES[calling.get("mode", "AUTO")]
    if choice == "required" and allowed and len(declared) == 1:
        choice = named_tool(allowed[0])
    return [_tool(function) for function in declared], choice


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    if not function.get("name"):
        raise BadRequest("A function has no name.", param="tools.functionDeclarations.name")
    parameters = function.get("parametersJsonSchema")
    if parameters is None and "parameters" in function:
        parameters = json_schema(function["parameters"])
    return function_tool(function["name"], function.get("description"), parameters)


class _Messages:
    """Makes messages of contents. Calls without an id get one, which their responses find by name."""

    def __init__(self) -> None:
        self._made: list[dict[str, Any]] = []
        self._open: list[tuple[str, str]] = []  # (function's name, call's id), not responded to
        self._calls = 0

    def of(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """:raises BadRequest: a role or a part that has no place in a chat."""
        if instruction := request.get("systemInstruction"):
            parts = [text_part(_words(part, "systemInstruction")) for part in instruction.get("parts", ())]
            if parts:
                self._made.append(message("system", parts))
        for content in request["contents"]:
            role = _ROLES.get(content.get("role", ""))
            if role is None:
                raise BadRequest("A role must be user or model.", param="contents.role")
            self._add(role, content.get("parts", ()))
        return self._made

    def _add(self, role: str, parts: Any) -> None:
        said: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        for part in parts:
            if part.get("thought"):
                continue
            if "functionCall" in part:
                calls.append(self._call(part["functionCall"]))
            elif "functionResponse" in part:
                self._respond(part["functionResponse"])
            else:
                said.append(_said(part))
        if said or calls:
            self._made.append(message(role, said, calls=calls))

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        self._calls += 1
        name = call.get("name", "")
        call_id = call.get("id") or f"call_{self._calls}"
        self._open.append((name, call_id))
        return tool_call(call_id, name, call.get("args", {}))

    def _respond(self, response: dict[str, Any]) -> None:
        name, call_id = response.get("name", ""), response.get("id")
        for open_call in self._open:
            if call_id == open_call[1] or (call_id is None and name == open_call[0]):
                self._open.remove(open_call)
                self._made.append(message("tool", [text_part(_result(response))], call_id=open_call[1]))
                return
        raise BadRequest("A function response follows no call.", param="contents.parts.functionResponse")


def _said(part: dict[str, Any]) -> dict[str, Any]:
    for name in _NO_PARTS:
        if name in part:
            raise _unsupported(f"contents.parts.{name}")
    if "inlineData" in part:
        data = part["inlineData"]
        kind = data.get("mimeType", "")
        address = data_url(kind, data.get("data", ""))
    elif "fileData" in part:
        kind, address = part["fileData"].get("mimeType", ""), part["fileData"].get("fileUri", "")
    else:
        return text_part(part.get("text", ""))
    return image_part(address) if kind.startswith("image/") else file_part(address)


def _words(part: dict[str, Any], place: str) -> str:
    if "text" not in part:
        raise _unsupported(f"{place}.parts")
    text: str = part["text"]
    return text


def _result(response: dict[str, Any]) -> str:
    """Return a function's result: the words alone where there is nothing else."""
    given = response.get("response", {})
    if len(given) == 1 and isinstance(words := next(iter(given.values())), str):
        return words
    return _encoder.encode(given).decode("utf-8")


def _unsupported(place: str) -> BadRequest:
    return BadRequest("This server cannot do what is asked for.", code="unsupported", param=place)
