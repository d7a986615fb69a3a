"""What a provider's requests can hold, found by asking its line encoder, so that the table cannot be wrong.

Each capability is tried with a small request. What the encoder refuses is not there; where it is, the members
that the request has more than a plain one say how it is sent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.provider import Provider
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.exceptions import Refused

_SCHEMA = {
    "type": "object",
    "properties": {"kind": {"type": "string"}},
    "required": ["kind"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": _SCHEMA}}
#: The smallest PNG: one pixel.
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
_ADDRESS = "https://example.com/picture.png"
_PLAIN = RequestTemplate(CHAT, "m", {"max_tokens": 16})
_SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which kind is it?"}]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider's chats can hold. Members are named by their path in the request's body.

    :param schema: the member that carries an output schema; "" where one is refused.
    :param tools: whether tools are taken.
    :param images: how images are taken: ``address``, ``data``.
    :param prefix: the member that marks what a cache may keep; "" where nothing is marked.
    """

    schema: str
    tools: bool
    images: tuple[str, ...]
    prefix: str

    def facts(self) -> dict[str, Any]:
        """Describe them as JSON types."""
        return {**asdict(self), "images": list(self.images)}


def capabilities_of(provider: Provider) -> Capabilities:
    """Ask the line encoder of a provider. Nothing is sent."""
    backend = provider.build(provider, provider.base_url or provider.example_url, "no-key", BackendOptions())
    if CHAT not in provider.endpoints:
        return Capabilities("", False, (), "")
    plain = _members(backend, _PLAIN, _SAID) or set()
    schema = _members(backend, replace(_PLAIN, output_schema=_SCHEMA), _SAID)
    tools = _members(backend, _PLAIN, _SAID, tools=[_TOOL])
    prefix = _members(backend, replace(_PLAIN, cache_prefix=True, shared_messages=1), _SAID)
    taken = {"address": _ADDRESS, "data": _PIXEL}
    images = (name for name, url in taken.items() if _members(backend, _PLAIN, _asked_of(url)) is not None)
    return Capabilities(
        schema=_added(plain, schema),
        tools=tools is not None,
        images=tuple(images),
        prefix=_added(plain, prefix),
    )


def _asked_of(url: str) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "Which kind is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


def _members(
    backend: Backend, template: RequestTemplate, messages: list[dict[str, Any]], **more: Any
) -> set[str] | None:
    """Return the paths of all members of a line, None where the request is refused."""
    try:
        line = backend.line_encoder(template)("w-1", jsonl.dumps({"messages": messages, **more}))
    except Refused:
        return None
    return set(_paths(jsonl.loads(line)))


def _paths(value: Any, above: str = "") -> set[str]:
    if isinstance(value, list):
        return {path for item in value for path in _paths(item, above)}
    if not isinstance(value, dict):
        return set()
    found: set[str] = set()
    for name, inner in value.items():
        path = f"{above}.{name}" if above else name
        found |= {path} | _paths(inner, path)
    return found


def _added(plain: set[str], other: set[str] | None) -> str:
    """Return the outermost members that a request has more than a plain one, without its frame."""
    more = (other or set()) - plain
    outermost = {path for path in more if path.rpartition(".")[0] not in more}
    return ", ".join(sorted(path.partition(".")[2] or path for path in outermost))
