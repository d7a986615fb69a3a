"""Requests written as upload lines of the OpenAI family.

What all lines of a batch share is encoded once; a line is then a splice of bytes. A body is looked at
only as far as its member names, except where the responses endpoint wants messages in another form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from airflow_batch_llm.backends.dialects import Dialect
from airflow_batch_llm.backends.openai_endpoints import FORMS, MAX_TOKENS, EndpointForm, SchemaPlace
from airflow_batch_llm.backends.openai_responses import translated, translated_params
from airflow_batch_llm.backends.strict_schema import to_strict, with_object_on_top
from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import RESPONSES, not_offered
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.exceptions import Refused

_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NOTHING = (b"false", b"null")


def line_encoder(template: RequestTemplate, dialect: Dialect) -> LineEncoder:
    """Return the encoder of a batch's lines. Its lines end in 0x0A and hold no other.

    :raises Refused: the template asks for what its endpoint, or a batch, lacks; ``reason`` is its name.
    :raises OutputSchemaError: its output schema is none of an object.
    """
    if template.endpoint not in dialect.endpoints:
        raise Refused(not_offered(dialect.name, template.endpoint, dialect.endpoints), reason="endpoint")
    middle = b'","method":"POST","url":' + jsonl.dumps(dialect.path_of(template.endpoint)) + b',"body":'
    if template.native:
        return _native_encoder(middle)
    form = _Form(template.endpoint, dialect)
    shared = _shared_members(template, form)
    if template.endpoint == RESPONSES:
        return _responses_encoder(middle, shared, form)
    return _splicing_encoder(middle, shared, form)


class _Form:
    """What one endpoint's bodies may hold, with the names that a dialect gives to it."""

    def __init__(self, endpoint: str, dialect: Dialect) -> None:
        self.endpoint = endpoint
        self.form: EndpointForm = FORMS[endpoint]
        self._limit = dialect.max_tokens_field if self.form.max_tokens == "" else self.form.max_tokens

    def field(self, name: str) -> str:
        """Return what a caller's member is called here. :raises Refused: there is nothing like it."""
        if name == MAX_TOKENS:
            if self._limit is None:
                self._refuse(name, "there is no output limit")
            return str(self._limit)
        if name in self.form.lacks:
            self._refuse(name, self.form.lacks[name])
        return name

    def drops(self, name: str, value: bytes) -> bool:
        """Say whether a body's member is one that the endpoint lacks, and says nothing."""
        lacking = name in self.form.lacks or (name == MAX_TOKENS and self._limit is None)
        return name == "stream" or (lacking and value in _NOTHING)

    def check_body(self, members: Mapping[str, Any]) -> None:
        """:raises Refused: the body asks nothing."""
        if self.form.main and members.keys().isdisjoint(self.form.main):
            what = " or ".join(map(repr, self.form.main))
            raise Refused(f"the request body has no {what}", reason=f"missing_{self.form.main[0]}")

    def _refuse(self, name: str, instead: str) -> None:
        raise Refused(f"the endpoint {self.endpoint} takes no {name!r}: {instead}", reason=name)


def _native_encoder(middle: bytes) -> LineEncoder:
    def encode(wire_id: str, body: bytes) -> bytes:
        members = _read_members(body)
        _refuse_stream(members.get("stream"))
        if bytes(members.get("model", b'""')) in (b'""', b"null"):
            raise Refused("the request body names no model", reason="missing_model")
        return b'{"custom_id":"' + wire_id.encode() + middle + one_line(body) + b"}\n"

    return encode


def _splicing_encoder(middle: bytes, shared: Mapping[str, Any], form: _Form) -> LineEncoder:
    encoded = {name: _encode_member(name, value) for name, value in shared.items()}
    head = middle + b"{" + b",".join(encoded.values())
    merge = _merger(middle, encoded, form)
    main = form.form.main
    # Names that a body may not simply bring along: its own member wins over the shared one, and some
    # are called otherwise or refused.
    special = frozenset({*encoded, "stream", "n", MAX_TOKENS, *form.form.lacks})

    def encode(wire_id: str, body: bytes) -> bytes:
        members = _read_members(body)
        if main:
            form.check_body(members)
        if not special.isdisjoint(members):
            return merge(wire_id, members)
        start = b'{"custom_id":"' + wire_id.encode() + head
        if not members:
            return start + b"}}\n"
        return start + b"," + one_line(body)[1:] + b"}\n"

    return encode


def _responses_encoder(middle: bytes, shared: Mapping[str, Any], form: _Form) -> LineEncoder:
    encoded = {name: _encode_member(name, value) for name, value in shared.items()}
    merge = _merger(middle, encoded, form)
    instructed = "instructions" in encoded

    def encode(wire_id: str, body: bytes) -> bytes:
        members = _read_members(body)
        form.check_body(members)
        return merge(wire_id, translated(members, instructed=instructed))

    return encode


def _merger(
    middle: bytes, encoded: Mapping[str, bytes], form: _Form
) -> Callable[[str, Mapping[str, msgspec.Raw | bytes]], bytes]:
    """Return what writes a line of shared members and a body's own, which win."""

    def merge(wire_id: str, members: Mapping[str, msgspec.Raw | bytes]) -> bytes:
        _refuse_stream(members.get("stream"))
        if bytes(members.get("n", b"1")) not in (b"1", b"null"):
            raise Refused("one answer per request is read: remove 'n' from the body", reason="n")
        own = {
            form.field(name): bytes(value)
            for name, value in members.items()
            if not form.drops(name, bytes(value))
        }
        kept = [member for name, member in encoded.items() if name not in own]
        kept += [jsonl.dumps(name) + b":" + value for name, value in own.items()]
        whole = b"{" + b",".join(kept) + b"}"
        return b'{"custom_id":"' + wire_id.encode() + middle + one_line(whole) + b"}\n"

    return merge


def _shared_members(template: RequestTemplate, form: _Form) -> dict[str, Any]:
    params = {name: value for name, value in template.params.items() if value is not None}
    if params.pop("stream", False):
        raise Refused("a batch cannot stream its answers: remove the parameter 'stream'", reason="stream")
    if params.get("n", 1) != 1:
        raise Refused("one answer per request is read: remove the parameter 'n'", reason="n")
    members: dict[str, Any] = {"model": template.model}
    members |= {form.field(name): value for name, value in params.items()}
    if template.endpoint == RESPONSES:
        members = translated_params(members)
    if template.output_schema is not None:
        _place_schema(members, template, form)
    return members


def _place_schema(members: dict[str, Any], template: RequestTemplate, form: _Form) -> None:
    assert template.output_schema is not None
    made = named_schema(template.schema_name, template.output_schema)
    place = form.form.schema
    if place is None:
        raise Refused(
            f"answers of the endpoint {form.endpoint} follow no schema: remove the output schema",
            reason="output_schema",
        )
    if place is SchemaPlace.RESPONSE_FORMAT:
        if "response_format" in members:
            raise Refused("give an output schema or 'response_format', not both", reason="response_format")
        members["response_format"] = {"type": "json_schema", "json_schema": made}
        return
    text = members.get("text", {})
    if not isinstance(text, Mapping) or "format" in text:
        raise Refused("give an output schema or text={'format': …}, not both", reason="text")
    members["text"] = {**text, "format": {"type": "json_schema", **made}}


def named_schema(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``json_schema`` holds: the schema, strict where it can be.

    :raises OutputSchemaError: it is none of an object.
    """
    sent = with_object_on_top(schema, name)
    strict = to_strict(schema)
    return {
        "name": _NOT_IN_NAME.sub("_", name)[:64] or "answer",
        "strict": strict is not None,
        "schema": strict if strict is not None else sent,
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


def _refuse_stream(value: msgspec.Raw | bytes | None) -> None:
    if value is not None and bytes(value) not in _NOTHING:
        raise Refused("a batch cannot stream its answers: remove 'stream' from the body", reason="stream")


def one_line(body: bytes) -> bytes:
    """Return the body without white space around it, and without the line ends of a pretty-printed one."""
    body = body.strip()
    return body if b"\n" not in body and b"\r" not in body else jsonl.dumps(jsonl.loads(body))
