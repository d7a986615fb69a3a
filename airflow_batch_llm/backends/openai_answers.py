"""Answers of the OpenAI family, whatever their endpoint: what a body of a status 200 says.

Which endpoint answered is read from the body: ``choices`` (chat, completions), ``output`` (responses),
``data`` with vectors (embeddings), ``results`` with flags (moderations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_batch_llm.backends.errors import token
from airflow_batch_llm.backends.openai_usage import NO_USAGE, loose_usage, whole
from airflow_batch_llm.backends.openai_vectors import vector_of
from airflow_batch_llm.backends.openai_verdicts import BY_FINISH_REASON, BY_SHAPE
from airflow_batch_llm.backends.tolerant_json import loads_tolerant
from airflow_batch_llm.core.model import Row, Usage
from airflow_batch_llm.core.verdicts import Verdict

#: Characters of a model's name that are kept.
MODEL_LIMIT = 200
_OK = Verdict.OK
#: What a moderation says; the rest of it stays in the raw file.
_MODERATION = ("flagged", "categories", "category_scores")
BAD_CALL = "bad_tool_call"
_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}


def shaped(wire_id: str, shape: str, *, model: str = "", usage: Usage = NO_USAGE) -> Row:
    """Return the row that a shape of the table stands for."""
    return Row(wire_id, BY_SHAPE[shape], shape, model=model, usage=usage)


def is_answer(body: Any) -> bool:
    """Say whether a body is of one of the kinds that endpoints answer with."""
    return isinstance(body, dict) and _reader_of(body) is not None


def answer_row(wire_id: str, body: Any) -> Row:
    """Return the row of a body that came with status 200 and holds no error."""
    read = _reader_of(body) if isinstance(body, dict) else None
    if read is None:
        return shaped(wire_id, "no_choices")
    model = body.get("model")
    return read(
        wire_id, body, model[:MODEL_LIMIT] if isinstance(model, str) else "", loose_usage(body.get("usage"))
    )


_Reader = Callable[[str, dict[str, Any], str, Usage], Row]


def _reader_of(body: Mapping[str, Any]) -> _Reader | None:
    if isinstance(body.get("choices"), list):
        return _choice_row
    if isinstance(body.get("output"), list):
        return _response_row
    data, results = body.get("data"), body.get("results")
    if isinstance(data, list) and all(isinstance(one, dict) and "embedding" in one for one in data):
        return _vectors_row
    if isinstance(results, list) and all(isinstance(one, dict) and "flagged" in one for one in results):
        return _moderation_row
    return None


# -- chat, completions -----------------------------------------------------------------------------
def _choice_row(wire_id: str, body: dict[str, Any], model: str, usage: Usage) -> Row:
    choice = body["choices"][0] if body["choices"] else None
    if not isinstance(choice, dict):
        return shaped(wire_id, "no_choice", model=model, usage=usage)
    message = choice.get("message")
    message = message if isinstance(message, dict) else {"content": choice.get("text")}
    finish = token(choice.get("finish_reason"))
    text, refusal = _text_of(message.get("content")), _text_of(message.get("refusal"))
    return _said_row(wire_id, finish, text, refusal, _calls_of(message), model, usage)


def _said_row(
    wire_id: str, finish: str, text: str | None, refusal: str | None, calls: Any, model: str, usage: Usage
) -> Row:
    verdict, code = _judge_answer(finish, text, refusal, calls)
    if refusal and (verdict is Verdict.REFUSED or not text):
        text = refusal
    output = calls if verdict is Verdict.OK or code == BAD_CALL else None
    return Row(wire_id, verdict, code, "", text, output, finish, model, usage)


def _judge_answer(finish: str, text: str | None, refusal: str | None, calls: Any) -> tuple[Verdict, str]:
    by_finish = BY_FINISH_REASON.get(finish.lower(), _OK)
    if by_finish is Verdict.FILTERED:
        return by_finish, "content_filter"
    if refusal:
        return BY_SHAPE["refusal"], "refusal"
    if by_finish is not _OK:
        return by_finish, finish
    if calls and not all(is_call(call) for call in calls):
        return BY_SHAPE[BAD_CALL], BAD_CALL
    if calls or (text and not text.isspace()):
        return _OK, ""
    return BY_SHAPE["no_content"], "no_content"


def _calls_of(message: dict[str, Any]) -> list[Any] | None:
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    call = message.get("function_call")  # the form before tools
    return [{"type": "function", "function": call}] if isinstance(call, dict) and call else None


def is_call(call: Any) -> bool:
    """Say whether a tool call can be acted on: it names a function, and its arguments are an object or none.

    A call of another kind is taken as it is.
    """
    if not isinstance(call, dict):
        return False
    if call.get("type") not in (None, "function"):
        return True
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return False
    arguments = function.get("arguments")
    return not isinstance(arguments, str) or not arguments.strip() or _is_object(arguments)


def _is_object(text: str) -> bool:
    """Say whether a text is a JSON object, or null."""
    try:
        return isinstance(loads_tolerant(text.encode("utf-8", "replace")), dict | None)
    except (ValueError, RecursionError):
        return False


def _text_of(content: Any) -> str | None:
    """Return text given as a string or as a list of text parts, None where there is none."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return None


# -- responses -------------------------------------------------------------------------------------
def _response_row(wire_id: str, body: dict[str, Any], model: str, usage: Usage) -> Row:
    items = [item for item in body["output"] if isinstance(item, dict)]
    parts = _parts_of([item for item in items if item.get("type") == "message"])
    texts = [part.get("text") for part in parts if part.get("type") == "output_text"]
    refusals = [part.get("refusal") for part in parts if part.get("type") == "refusal"]
    return _said_row(
        wire_id, _finish_of(body), _joined(texts), _joined(refusals), _response_calls(items), model, usage
    )


def _finish_of(body: dict[str, Any]) -> str:
    """Return why a response ended: its status, or what kept it from being complete."""
    status = token(body.get("status"))
    if status.lower() != "incomplete":
        return status
    details = body.get("incomplete_details")
    reason = token(details.get("reason")) if isinstance(details, dict) else ""
    return reason if BY_FINISH_REASON.get(reason.lower(), _OK) is not _OK else status


def _parts_of(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of the messages; of the final one alone where the model commented on the way."""
    final = [message for message in messages if message.get("phase") == "final_answer"]
    contents = [message.get("content") for message in final or messages]
    return [part for parts in contents if isinstance(parts, list) for part in parts if isinstance(part, dict)]


def _joined(texts: Sequence[Any]) -> str | None:
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if found else None


def _response_calls(items: Sequence[dict[str, Any]]) -> list[Any] | None:
    """Return tool calls in the form that chat answers have them in."""
    calls = []
    for item in items:
        kind, said = _CALLS.get(str(item.get("type")), ("", ""))
        if kind:
            called = {"name": item.get("name"), said: item.get(said)}
            calls.append({"id": item.get("call_id"), "type": kind, kind: called})
    return calls or None


# -- embeddings, moderations -----------------------------------------------------------------------
def _vectors_row(wire_id: str, body: dict[str, Any], model: str, usage: Usage) -> Row:
    vectors = [vector_of(one["embedding"]) for one in _in_order(body["data"])]
    if None in vectors or not _is_whole(body["data"]):
        return shaped(wire_id, "bad_vector", model=model, usage=usage)
    if not all(vectors) or not vectors:
        return shaped(wire_id, "no_vector", model=model, usage=usage)
    output = vectors[0] if len(vectors) == 1 else vectors
    return Row(wire_id, _OK, output=output, model=model, usage=usage)


def _in_order(data: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(data, key=lambda one: whole(one.get("index")) or 0)


def _is_whole(data: Sequence[dict[str, Any]]) -> bool:
    """Say whether each of several vectors can be told apart, and none before the last is missing."""
    places = sorted(whole(one.get("index")) or 0 for one in data)
    return len(data) < 2 or places == list(range(len(data)))


def _moderation_row(wire_id: str, body: dict[str, Any], model: str, usage: Usage) -> Row:
    outputs = [moderation_output([one]) for one in body["results"]]
    if not outputs:
        return shaped(wire_id, "no_result", model=model, usage=usage)
    if None in outputs:
        return shaped(wire_id, "no_choices", model=model, usage=usage)
    output = outputs[0] if len(outputs) == 1 else outputs
    return Row(wire_id, _OK, output=output, model=model, usage=usage)


def moderation_output(results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what the first result says, None where it is no result of a moderation."""
    flagged, categories, scores = (results[0].get(name) for name in _MODERATION)
    if not isinstance(flagged, bool) or not isinstance(categories, dict) or not isinstance(scores, dict):
        return None
    return dict(zip(_MODERATION, (flagged, categories, scores), strict=True))
