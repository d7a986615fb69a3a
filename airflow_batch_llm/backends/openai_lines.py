"""Requests written as upload lines of the OpenAI family.

What all lines of a batch share is encoded once; a line is then a splice of bytes. A body is looked at
only as far as its member names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_batch_llm.backends.dialects import Dialect
from airflow_batch_llm.backends.strict_schema import to_strict
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import Refused

_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_TOKENS = "max_tokens"


def line_encoder(template: RequestTemplate, dialect: Dialect) -> LineEncoder:
    """Return the encoder of a batch's lines. Its lines end in 0x0A and hold no other.

    :raises Refused: the template asks for an endpoint, stream or number of answers that a batch lacks.
    """
    if template.endpoint not in dialect.endpoints:
        known = ", ".join(sorted(dialect.endpoints))
        raise Refused(
            f"{dialect.name} batches are not built for endpoint {template.endpoint!r}; known: {known}",
            reason="endpoint",
        )
    middle = b'","method":"POST","url":' + jsonl.dumps(template.endpoint) + b',"body":'
    if template.native:
        return _native_encoder(middle)
    return _chat_encoder(middle, _shared_members(template, dialect), dialect)


def _native_encoder(middle: bytes) -> LineEncoder:
    def encode(wire_id: str, body: bytes) -> bytes:
        members = _read_members(body)
        _refuse_stream(members.get("stream"))
        if bytes(members.get("model", b'""')) in (b'""', b"null"):
            raise Refused("the request body names no model", reason="missing_model")
        return b'{"custom_id":"' + wire_id.encode() + middle + _one_line(body) + b"}\n"

    return encode


def _chat_encoder(middle: bytes, shared: Mapping[str, Any], dialect: Dialect) -> LineEncoder:
    encoded = {name: _encode_member(name, value) for name, value in shared.items()}
    head = middle + b"{" + b",".join(encoded.values())
    # Names that a body may not simply bring along: its own member wins over the shared one.
    special = frozenset({*encoded, "stream", _MAX_TOKENS})

    def encode(wire_id: str, body: bytes) -> bytes:
        members = _read_members(body)
        if special.isdisjoint(members):
            start = b'{"custom_id":"' + wire_id.encode() + head
            if not members:
                return start + b"}}\n"
            return start + b"," + _one_line(body)[1:] + b"}\n"
        _refuse_stream(members.get("stream"))
        own = {_field(name, dialect): bytes(value) for name, value in members.items() if name != "stream"}
        kept = [member for name, member in encoded.items() if name not in own]
        kept += [jsonl.dumps(name) + b":" + value for name, value in own.items()]
        whole = b"{" + b",".join(kept) + b"}"
        return b'{"custom_id":"' + wire_id.encode() + middle + _one_line(whole) + b"}\n"

    return encode


def _shared_members(template: RequestTemplate, dialect: Dialect) -> dict[str, Any]:
    params = {name: value for name, value in template.params.items() if value is not None}
    if params.pop("stream", False):
        raise Refused("a batch cannot stream its answers: remove the parameter 'stream'", reason="stream")
    if params.get("n", 1) != 1:
        raise Refused("one answer per request is read: remove the parameter 'n'", reason="n")
    members: dict[str, Any] = {"model": template.model}
    members |= {_field(name, dialect): value for name, value in params.items()}
    if template.output_schema is not None:
        if "response_format" in members:
            raise Refused("give an output schema or 'response_format', not both", reason="response_format")
        members["response_format"] = _response_format(template.schema_name, template.output_schema)
    return members


def _field(name: str, dialect: Dialect) -> str:
    return dialect.max_tokens_field if name == _MAX_TOKENS else name


def _response_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    strict = to_strict(schema)
    return {
        "type": "json_schema",
        "json_schema": {
            "name": _NOT_IN_NAME.sub("_", name)[:64] or "answer",
            "strict": strict is not None,
            "schema": strict if strict is not None else schema,
        },
    }


def _encode_member(name: str, value: Any) -> bytes:
    try:
        return jsonl.dumps(name) + b":" + jsonl.dumps(value)
    except ValueError as e:
        raise Refused(f"parameter {name!r} cannot be written as JSON", reason="not_json") from e


def _read_members(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _members_of(body)
    except (ValueError, RecursionError) as e:
        raise Refused("the request body is not a JSON object", reason="not_an_object") from e


def _refuse_stream(value: msgspec.Raw | None) -> None:
    if value is not None and bytes(value) not in (b"false", b"null"):
        raise Refused("a batch cannot stream its answers: remove 'stream' from the body", reason="stream")


def _one_line(body: bytes) -> bytes:
    """Return the body without white space around it, and without the line ends of a pretty-printed one."""
    body = body.strip()
    return body if b"\n" not in body and b"\r" not in body else jsonl.dumps(jsonl.loads(body))
