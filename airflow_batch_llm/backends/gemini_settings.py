"""A request's settings by Gemini's names; whatever it has no equal of is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_batch_llm.backends.gemini_schema import to_gemini_schema
from airflow_batch_llm.exceptions import Refused

#: Settings that mean the same under another name.
_RENAMED = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_EMBEDDING = {"dimensions": "outputDimensionality", "task_type": "taskType", "title": "title"}
_MAX_STOPS = 5
#: Thinking tokens that Google's own OpenAI-shaped interface makes of an effort for Gemini 2.5.
_BUDGETS = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
#: Efforts that Gemini 3 and later know by the same names.
_LEVELS = frozenset({"minimal", "low", "medium", "high", "xhigh"})
_JSON = "application/json"


def generation_config(
    settings: Mapping[str, Any], max_tokens: int | None, form: Mapping[str, Any], model: str
) -> dict[str, Any]:
    """Return the settings of a chat.

    :param settings: by OpenAI's names.
    :param form: what the output schema asks of the answer, see :func:`answer_form`.
    :raises Refused: one that a batch has no equal of; ``reason`` is its name.
    """
    made: dict[str, Any] = {"maxOutputTokens": max_tokens} if max_tokens is not None else {}
    for name, value in settings.items():
        if name in _RENAMED:
            made[_RENAMED[name]] = value
        elif name == "stop":
            made["stopSequences"] = _stops(value)
        elif name == "reasoning_effort":
            made["thinkingConfig"] = _thinking(value, model)
        elif name == "response_format":
            made |= _own_form(value, form)
        else:
            raise Refused(f"Gemini batches have no equal of {name!r}: remove it", reason=name)
    return {**made, **form}


def answer_form(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what an output schema asks of the answer."""
    if schema is None:
        return {}
    made = to_gemini_schema(schema)
    if made is not None:
        return {"responseMimeType": _JSON, "responseSchema": made}
    return {"responseMimeType": _JSON, "responseJsonSchema": dict(schema)}


def embedding_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request for a vector.

    :raises Refused: one that a batch has no equal of; ``reason`` is its name.
    """
    made: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None or (name == "encoding_format" and value == "float"):
            continue  # vectors come as numbers in any case
        if name not in _EMBEDDING:
            raise Refused(f"Gemini batches of vectors have no equal of {name!r}: remove it", reason=name)
        made[_EMBEDDING[name]] = value
    return made


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise Refused("'stop' is neither a text nor a list of texts", reason="stop")
    if len(stops) > _MAX_STOPS:
        raise Refused(f"Gemini takes at most {_MAX_STOPS} texts of 'stop'", reason="stop")
    return stops


def _thinking(effort: Any, model: str) -> dict[str, Any]:
    name = model.rpartition("/")[2]
    asked = effort if isinstance(effort, str) else ""
    if name.startswith("gemini-2.5"):
        # The pro model cannot be kept from thinking.
        if asked in _BUDGETS and not (asked == "none" and name.startswith("gemini-2.5-pro")):
            return {"thinkingBudget": _BUDGETS[asked]}
    elif not name.startswith(("gemini-1", "gemini-2")) and asked in _LEVELS:
        return {"thinkingLevel": asked.upper()}
    raise Refused(f"model {model!r} knows no such 'reasoning_effort'", reason="reasoning_effort")


def _own_form(value: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller's own ``response_format`` asks of the answer."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if form and kind != "text":
        raise Refused("give an output schema or 'response_format', not both", reason="response_format")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"responseMimeType": _JSON}
    described = value.get("json_schema") if kind == "json_schema" else None
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if isinstance(schema, Mapping):
        return answer_form(schema)
    raise Refused(
        "'response_format' is neither text, json_object nor a json_schema", reason="response_format"
    )
