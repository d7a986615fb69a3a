"""Result lines of the OpenAI family, decoded into rows.

The common line (HTTP 200, one chat answer) takes a typed path that builds nothing it does not need.
Every other line, and every line whose types surprise the typed path, takes the general one, which
accepts what has been met in the wild: failures in the output file, errors as text, bodies as JSON
strings, bare completions, counts as strings, broken UTF-8. Neither ever raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from airflow_batch_llm.backends.errors import MESSAGE_LIMIT, ErrorFacts, read_error, token
from airflow_batch_llm.backends.openai_verdicts import BY_FINISH_REASON, BY_SHAPE, verdict_of_error
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TOKENS = 2**53  # larger counts are nonsense and would not fit the ledger
_MODEL_LIMIT = 200
_NO_USAGE = Usage()
_OK = Verdict.OK


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Message(msgspec.Struct, gc=False):
    content: str
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice]
    model: str = ""
    usage: _Usage | None = None
    error: None = None


class _Response(msgspec.Struct, gc=False):
    body: _Body
    status_code: int


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response
    error: None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def decode_row(line: bytes) -> Row:
    """Decode one result line. Never raises: a line that cannot be read is ``unknown``.

    :param line: without its end of line; a byte order mark or white space around it is ignored.
    """
    try:
        parsed = _decode_line(line)
        response = parsed.response
        body = response.body
        choice = body.choices[0]
        message = choice.message
        text = message.content
        if (
            choice.finish_reason == "stop"
            and response.status_code == 200
            and text
            and not message.refusal
            and not message.tool_calls
            and not text.isspace()
        ):
            return Row(
                parsed.custom_id, _OK, "", "", text, None, "stop", body.model[:_MODEL_LIMIT],
                _typed_usage(body.usage),
            )  # fmt: skip
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError, RecursionError, ValueError):
        pass
    return _decode_any(line)


def _typed_usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return _NO_USAGE
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    counts = (
        usage.prompt_tokens,
        usage.completion_tokens,
        (prompt.cached_tokens or 0) if prompt is not None else 0,
        (prompt.cache_write_tokens or 0) if prompt is not None else 0,
        (completion.reasoning_tokens or 0) if completion is not None else 0,
    )
    if min(counts) < 0 or max(counts) > _MAX_TOKENS:
        raise ValueError("token counts out of range")
    return Usage(*counts)


# -- the general path ------------------------------------------------------------------------------


def _decode_any(line: bytes) -> Row:
    try:
        value = _loads_tolerant(line)
    except (ValueError, RecursionError):
        return _shaped("", "not_json")
    if not isinstance(value, dict):
        return _shaped("", "not_an_object")
    custom_id = value.get("custom_id")
    wire_id = custom_id if isinstance(custom_id, str) else ""
    try:
        return _row_of(wire_id, value)
    except Exception:  # one odd row must never stop the others, whatever it holds
        return _shaped(wire_id, "undecodable")


def _shaped(wire_id: str, shape: str, *, model: str = "", usage: Usage = _NO_USAGE) -> Row:
    """Return the row that a shape of the table stands for."""
    return Row(wire_id, BY_SHAPE[shape], shape, model=model, usage=usage)


def _loads_tolerant(line: bytes) -> Any:
    """Parse what strict JSON forbids as well: NaN, raw control characters, broken UTF-8, half surrogates.

    Broken text is mended with U+FFFD: the answer was paid for, and the raw line is kept beside it.
    """
    line = line.strip().removeprefix(_BOM)
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _mended(json.loads(line.decode("utf-8", "replace"), strict=False))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", name): _mended(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_mended(member) for member in value]
    return value


def _row_of(wire_id: str, value: dict[str, Any]) -> Row:
    record_id = value.get("recordId")
    if not wire_id and isinstance(record_id, str) and record_id:
        return _shaped(record_id, "other_protocol")
    response, error = _json_text(value.get("response")), value.get("error")
    if not isinstance(response, dict) or not response:
        if _says_something(error):
            return _error_row(wire_id, read_error(error), None)
        return _shaped(wire_id, "no_response")
    if "status_code" not in response and "body" not in response:
        response = {"body": response}  # Fireworks: the bare completion
    status, body = _whole(response.get("status_code")), _json_text(response.get("body"))
    if status is None and isinstance(body, dict) and "choices" in body:
        status = 200
    if status is not None and 200 <= status < 300:
        return _success_row(wire_id, status, body, error)
    if _says_something(body):
        facts = read_error(body)
        if facts == ErrorFacts() and _says_something(error):
            facts = read_error(error)
    else:
        facts = read_error(error)
    if status is None and facts == ErrorFacts():
        return _shaped(wire_id, "no_status")
    return _error_row(wire_id, facts, status)


def _success_row(wire_id: str, status: int, body: Any, error: Any) -> Row:
    if isinstance(body, dict) and _says_something(body.get("error")):
        return _error_row(wire_id, read_error(body["error"]), status)
    if _says_something(error):
        return _error_row(wire_id, read_error(error), status)
    if not body:
        return _shaped(wire_id, "no_body")
    if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
        return _shaped(wire_id, "no_choices")
    return _answer_row(wire_id, body)


def _answer_row(wire_id: str, body: dict[str, Any]) -> Row:
    model = body.get("model")
    model = model[:_MODEL_LIMIT] if isinstance(model, str) else ""
    usage = _loose_usage(body.get("usage"))
    choice = body["choices"][0] if body["choices"] else None
    if not isinstance(choice, dict):
        return _shaped(wire_id, "no_choice", model=model, usage=usage)
    message = choice.get("message")
    message = message if isinstance(message, dict) else {"content": choice.get("text")}
    finish = token(choice.get("finish_reason"))
    text, refusal = _text_of(message.get("content")), _text_of(message.get("refusal"))
    calls = _calls_of(message)
    verdict, code = _judge_answer(finish, text, refusal, calls)
    if refusal and (verdict is Verdict.REFUSED or not text):
        text = refusal
    output = calls if verdict is Verdict.OK else None
    return Row(wire_id, verdict, code, "", text, output, finish, model, usage)


def _judge_answer(finish: str, text: str | None, refusal: str | None, calls: Any) -> tuple[Verdict, str]:
    by_finish = BY_FINISH_REASON.get(finish.lower(), _OK)
    if by_finish is Verdict.FILTERED:
        return by_finish, "content_filter"
    if refusal:
        return BY_SHAPE["refusal"], "refusal"
    if by_finish is not _OK:
        return by_finish, finish
    if calls or (text and not text.isspace()):
        return _OK, ""
    return BY_SHAPE["no_content"], "no_content"


def _calls_of(message: dict[str, Any]) -> list[Any] | None:
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    call = message.get("function_call")  # the form before tools
    return [{"type": "function", "function": call}] if isinstance(call, dict) and call else None


def _text_of(content: Any) -> str | None:
    """Return text given as a string or as a list of text parts, None where there is none."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return None


def _error_row(wire_id: str, facts: ErrorFacts, status: int | None) -> Row:
    if (status is None or status < 400) and facts.status is not None:
        status = facts.status
    verdict = verdict_of_error(facts.code, facts.type, status)
    unnamed = "error_text" if status is None or 200 <= status < 300 else f"http_{status}"
    code = facts.code or facts.type or unnamed
    return Row(wire_id, verdict, code, facts.message[:MESSAGE_LIMIT])


def _json_text(value: Any) -> Any:
    """Return the JSON value inside a string that holds one (Mistral sends bodies so), else ``value``."""
    if not isinstance(value, str):
        return value
    try:
        return _mended(json.loads(value, strict=False))
    except (ValueError, RecursionError):
        return value


def _says_something(error: Any) -> bool:
    """Say whether an error is there: an object of nulls and a zero code are none."""
    if isinstance(error, dict):
        return any(error.values())
    return bool(error)


def _loose_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return _NO_USAGE
    prompt = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    completion = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return Usage(
        input=_tokens(usage.get("prompt_tokens", usage.get("input_tokens"))),
        output=_tokens(usage.get("completion_tokens", usage.get("output_tokens"))),
        cached=_tokens(prompt.get("cached_tokens")),
        cache_write=_tokens(prompt.get("cache_write_tokens")),
        reasoning=_tokens(completion.get("reasoning_tokens")),
    )


def _tokens(value: Any) -> int:
    return min(max(_whole(value) or 0, 0), _MAX_TOKENS)


def _whole(value: Any) -> int | None:
    """Return a whole number given as int, float or digits; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(float(value)) if isinstance(value, (str, float)) else None
    except (ValueError, OverflowError):
        return None
