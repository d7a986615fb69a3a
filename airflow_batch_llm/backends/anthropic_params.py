"""The parameters of a chat under the names that Anthropic's Messages have for them.

What means the same is renamed, what is Anthropic's own goes through, everything else is refused by its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from airflow_batch_llm.backends.anthropic_schema import answer_format
from airflow_batch_llm.exceptions import Refused

#: Versions of the API, the newest first.
NEWEST = "2026-10-21"
BEFORE_SAMPLING_WENT = "2023-06-01"
#: The newest version refuses these at any value.
SAMPLING = ("temperature", "top_p", "top_k")

#: Anthropic's own parameters that batches take, and go through as they are.
_OWN = frozenset(
    {
        "thinking", "inference_geo", "container", "diagnostics", "cache_control", "stop_sequences",
        "user_profile_id",
    }
)  # fmt: skip
#: OpenAI's, at the values that ask for nothing.
_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
}
_EFFORTS = ("high", "low", "max", "medium", "xhigh")
_TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
_MODES = ("text", "json_schema")

Params = dict[str, Any]


def message_params(settings: Mapping[str, Any], *, version: str) -> Params:
    """Return the parameters that settings beside model, messages, tools and output limit come to.

    :param version: of the API.
    :raises Refused: one has no place in the protocol, or a value that it does not take; ``reason`` is its
        name.
    :raises OutputSchemaError: ``response_format`` holds a schema that cannot be sent.
    """
    params: Params = {}
    for name, value in settings.items():
        if name in _ASKS_NOTHING and value in _ASKS_NOTHING[name]:
            continue
        if name in SAMPLING:
            params[name] = _sampling(name, value, version)
        elif name in _OWN:
            _put(params, name, value, name)
        elif name in _TRANSLATED:
            _TRANSLATED[name](params, value)
        else:
            raise Refused(f"Anthropic's batches take no {name!r}: remove it", reason=name)
    return params


def _put(params: Params, name: str, value: Any, asked: str) -> None:
    """:raises Refused: two parameters say different things of one of the protocol's."""
    if params.setdefault(name, value) != value:
        raise Refused(f"{asked!r} says otherwise than another parameter: remove one of them", reason=asked)


def _sampling(name: str, value: Any, version: str) -> Any:
    if version != BEFORE_SAMPLING_WENT:
        raise Refused(
            f"version {version} of Anthropic's API takes no {name!r}: remove it, or set the connection's "
            f"option api_version to {BEFORE_SAMPLING_WENT}",
            reason=name,
        )
    if name == "temperature" and not (_is_number(value) and 0 <= value <= 1):
        raise Refused("Anthropic takes a 'temperature' from 0 to 1", reason=name)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _stop(params: Params, value: Any) -> None:
    sequences = [value] if isinstance(value, str) else value
    if not isinstance(sequences, (list, tuple)) or not all(isinstance(one, str) for one in sequences):
        raise Refused("'stop' is neither a text nor a list of texts", reason="stop")
    _put(params, "stop_sequences", list(sequences), "stop")


def _effort(params: Params, value: Any) -> None:
    if value == "none":
        _put(params, "thinking", {"type": "disabled"}, "reasoning_effort")
    elif value in _EFFORTS:
        _configure(params, "effort", value, "reasoning_effort")
    else:
        known = ", ".join(_EFFORTS)
        raise Refused(
            f"Anthropic's efforts are {known}, and none for no thinking: {value!r} is none of them",
            reason="reasoning_effort",
        )


def _configure(params: Params, name: str, value: Any, asked: str) -> None:
    _put(params.setdefault("output_config", {}), name, value, asked)


def _output_config(params: Params, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise Refused("'output_config' is no object", reason="output_config")
    for name, member in value.items():
        _configure(params, name, member, "output_config")


def _response_format(params: Params, value: Any) -> None:
    mode = value.get("type") if isinstance(value, Mapping) else None
    if mode == "text":
        return
    given = value.get("json_schema") if mode == "json_schema" else None
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise Refused(
            f"Anthropic takes a 'response_format' of {' or '.join(_MODES)}: give an output schema",
            reason="response_format",
        )
    made = answer_format(given["schema"], str(given.get("name") or "answer"))
    _configure(params, "format", made, "response_format")


def _user(params: Params, value: Any, asked: str = "user") -> None:
    if not isinstance(value, str):
        raise Refused(f"{asked!r} is no text", reason=asked)
    _put(params.setdefault("metadata", {}), "user_id", value, asked)


def _metadata(params: Params, value: Any) -> None:
    if not isinstance(value, Mapping) or value.keys() - {"user_id"}:
        raise Refused("Anthropic's 'metadata' holds 'user_id' and nothing else", reason="metadata")
    for name, member in value.items():
        _put(params.setdefault("metadata", {}), name, member, "metadata")


def _service_tier(params: Params, value: Any) -> None:
    if not isinstance(value, str) or value not in _TIERS:
        raise Refused(f"Anthropic's service tiers are auto and default, not {value!r}", reason="service_tier")
    params["service_tier"] = _TIERS[value]


_TRANSLATED: dict[str, Callable[[Params, Any], None]] = {
    "stop": _stop,
    "reasoning_effort": _effort,
    "output_config": _output_config,
    "response_format": _response_format,
    "user": _user,
    "safety_identifier": functools.partial(_user, asked="safety_identifier"),
    "metadata": _metadata,
    "service_tier": _service_tier,
}
