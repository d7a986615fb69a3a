"""Output schemas: what a structured answer must be, and how its text is checked.

An answer is checked as it came: no code fence is stripped and nothing is repaired. Errors name fields
and kinds of faults, never what the answer said.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import logging
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_batch_llm.core.drafts import AnswerMismatch, AnswerSchema
from airflow_batch_llm.core.jsonl import dumps, dumps_canonical, has_nonfinite
from airflow_batch_llm.exceptions import ConfigurationError, OutputSchemaError
from airflow_batch_llm.import_paths import load_path, path_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

log = logging.getLogger("airflow_batch_llm.schemas")

_NAME_ALIEN = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME = 64
_MAX_ERRORS = 5
_MAX_WHERE = 200
_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_NOT_JSON = "not_json"


def answer_schema(value: Any) -> AnswerSchema | None:
    """Return the schema that a DAG file names.

    :param value: None, a pydantic model class, its import path ``module:Class``, or a JSON schema
        (Draft 2020-12) as a dict; also an :class:`AnswerSchema` as it is.
    :raises OutputSchemaError: it cannot be imported, is none of these, or is not a valid schema.
    """
    if value is None:
        return None
    if isinstance(value, (ModelSchema, JsonSchema)):
        return value
    if isinstance(value, str):
        return _loaded_schema(value)
    if isinstance(value, Mapping):
        return JsonSchema(value)
    if _is_model(value):
        return ModelSchema(value)
    raise OutputSchemaError(
        f"output schema {schema_path(value)!r} is neither a pydantic model nor a JSON schema"
    )


def described_schema(described: Mapping[str, Any]) -> AnswerSchema | None:
    """Return the schema that a plan's ``job.json`` names: the class, else its JSON schema."""
    schema = described["template"]["output_schema"]
    named = described.get("output_schema")
    if schema is None or not isinstance(named, str):
        return answer_schema(schema)
    try:
        return answer_schema(named)
    except OutputSchemaError:
        log.warning("output schema %s cannot be imported here; its JSON schema is used", named)
        return answer_schema(schema)


def schema_path(value: Any) -> Any:
    """Return how a schema is written down: a class by its import path, anything else as given.

    The same in every process, also for a class that a DAG file defines.
    """
    if isinstance(value, ModelSchema):
        value = value.model
    elif isinstance(value, JsonSchema):
        value = value.json_schema
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return path_of(value if hasattr(value, "__qualname__") else type(value))


class ModelSchema:
    """A pydantic model. Answers come back as ``model_dump(mode="json", by_alias=True)``."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        try:
            self.json_schema: Mapping[str, Any] = model.model_json_schema()
            #: The schema of what :meth:`parse` returns; differs for computed fields and double aliases.
            self.output_schema: Mapping[str, Any] = model.model_json_schema(mode="serialization")
        except Exception as e:
            raise OutputSchemaError(
                f"output schema {path_of(model)!r} has no JSON schema: {type(e).__name__}"
            ) from e
        self.name = _wire_name(model.__name__)
        self.fingerprint = _fingerprint("pydantic", self.json_schema, *_validator_sources(model))
        self._known = frozenset(_property_names(self.json_schema))

    def __repr__(self) -> str:
        return f"ModelSchema({path_of(self.model)!r})"

    def parse(self, text: str) -> Any:
        """Return the answer as plain JSON types. :raises AnswerMismatch: it does not fit the model."""
        from pydantic import ValidationError

        try:
            plain = self.model.model_validate_json(text).model_dump(mode="json", by_alias=True)
        except ValidationError as e:
            raise self._mismatch(e) from None
        except UnicodeEncodeError:
            raise AnswerMismatch("$: half_surrogate", _NOT_JSON) from None
        except Exception as e:
            # A validator of the user's own may raise anything, and its message may quote the answer.
            raise AnswerMismatch(f"$: validator failed with {type(e).__name__}"[:_MAX_WHERE]) from None
        if has_nonfinite(plain):
            raise AnswerMismatch("$: finite_number")
        return plain

    #: The model makes the plain form, so there is no shorter way.
    read = parse

    def _mismatch(self, error: ValidationError) -> AnswerMismatch:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        # At the top it is the whole text; further down, a field that holds JSON as text.
        if any(fault["type"] == "json_invalid" and not fault["loc"] for fault in faults):
            return AnswerMismatch("$: json_invalid", _NOT_JSON)
        return AnswerMismatch(_where(self._known, ((f["loc"], _fault_kind(f["type"])) for f in faults)))


class JsonSchema:
    """A JSON schema, Draft 2020-12. ``format`` is not enforced; ``$ref`` may only point inside."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema  # type: ignore[import-untyped]
        import referencing

        self.json_schema: Mapping[str, Any] = dict(schema)
        self.output_schema: Mapping[str, Any] = self.json_schema
        self.name = _wire_name(str(schema.get("title") or "answer"))
        try:
            jsonschema.Draft202012Validator.check_schema(self.json_schema)
        except jsonschema.SchemaError as e:
            where = "/".join(str(part) for part in e.absolute_path) or "its top"
            raise OutputSchemaError(f"output schema {self.name!r} is no valid JSON schema at {where}") from e
        _check_references(self.json_schema, self.name)
        self.fingerprint = _fingerprint("jsonschema", self.json_schema)
        # An empty registry: the library would otherwise fetch unknown references over the network.
        self._validator = jsonschema.Draft202012Validator(self.json_schema, registry=referencing.Registry())
        self._known = frozenset(_property_names(self.json_schema))

    def __repr__(self) -> str:
        return f"JsonSchema({self.name!r}, {self.fingerprint[:12]})"

    def parse(self, text: str) -> Any:
        """Return the answer as plain JSON types. :raises AnswerMismatch: it does not fit the schema."""
        answer = self.read(text)
        errors = itertools.islice(self._validator.iter_errors(answer), _MAX_ERRORS)
        faults = [fault for error in errors for fault in _faults_of(error)]
        if faults:
            raise AnswerMismatch(_where(self._known, faults))
        return answer

    def read(self, text: str) -> Any:
        """Return the answer without comparing it to the schema. :raises AnswerMismatch: it is no JSON."""
        try:
            return msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise AnswerMismatch("$: json_invalid", _NOT_JSON) from None


def _loaded_schema(path: str) -> AnswerSchema | None:
    try:
        found = load_path(path)
    except ConfigurationError as e:
        raise OutputSchemaError(f"output schema {path!r}: {e.args[0]}") from e
    if isinstance(found, Mapping) or _is_model(found):
        return answer_schema(found)
    raise OutputSchemaError(f"output schema {path!r} is neither a pydantic model nor a JSON schema")


def _is_model(value: Any) -> bool:
    from pydantic import BaseModel

    return isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel


def _wire_name(title: str) -> str:
    """Shape a name as the OpenAI protocol wants it: ``[A-Za-z0-9_-]``, at most 64 long."""
    return _NAME_ALIEN.sub("_", title).strip("_")[:_MAX_NAME] or "answer"


def _fingerprint(kind: str, schema: Mapping[str, Any], *parts: str) -> str:
    try:
        return hashlib.sha256(dumps_canonical([kind, schema, *parts])).hexdigest()
    except ValueError as e:
        raise OutputSchemaError(f"the output schema is not JSON: {e}") from e


def _validator_sources(model: type[BaseModel]) -> Iterator[str]:
    """Yield the source of every model that checks by code, which its JSON schema does not show."""
    for part in _models_in(model, set()):
        if not _decides_by_code(part):
            continue
        for owner in part.__mro__:
            if owner.__module__.partition(".")[0] in ("pydantic", "builtins", "typing", "abc"):
                continue
            try:
                yield inspect.getsource(owner)
            except (OSError, TypeError):
                yield path_of(owner)


def _decides_by_code(model: type[BaseModel]) -> bool:
    found = model.__pydantic_decorators__
    if found.field_validators or found.model_validators or found.validators or found.root_validators:
        return True
    return any(hasattr(mark, "func") for field in model.model_fields.values() for mark in field.metadata)


def _models_in(annotation: Any, seen: set[int]) -> Iterator[type[BaseModel]]:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    if _is_model(annotation):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models_in(field.annotation, seen)
    for argument in typing.get_args(annotation):
        yield from _models_in(argument, seen)


def _property_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        for part in schema.values():
            yield from _property_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _property_names(part)


def _check_references(schema: Any, name: str) -> None:
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise OutputSchemaError(f"output schema {name!r} refers to {reference!r} outside of itself")
        target = schema
        if not reference.startswith("#/"):
            continue
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, Mapping) and key in target:
                target = target[key]
            else:
                raise OutputSchemaError(f"output schema {name!r} refers to {reference!r}, which it lacks")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference
        for part in schema.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def _faults_of(error: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield path and keyword of a JSON schema's error; of missing properties, the path of each."""
    path, keyword = tuple(error.absolute_path), str(error.validator)
    if keyword == "required" and isinstance(error.validator_value, list):
        for name in error.validator_value:
            if name not in error.instance:
                yield (*path, name), keyword
    else:
        yield path, keyword


def _where(known: frozenset[str], faults: Iterable[tuple[Iterable[Any], str]]) -> str:
    """Name where an answer is wrong and how: ``$.labels[*].stars: maximum``, at most 200 characters.

    A key the schema does not name was made up by the model: it is answer content, so it shows as ``*``.
    """
    told = dict.fromkeys(f"${''.join(_step(known, part) for part in path)}: {kind}" for path, kind in faults)
    shown = "; ".join(itertools.islice(told, _MAX_ERRORS))
    if len(told) > _MAX_ERRORS:
        shown += f"; and {len(told) - _MAX_ERRORS} more"
    return shown if len(shown) <= _MAX_WHERE else f"{shown[: _MAX_WHERE - 1]}…"


def _step(known: frozenset[str], part: Any) -> str:
    if not isinstance(part, str):
        return "[*]"
    if part not in known:
        return ".*"
    return f".{part}" if part.isidentifier() else f"[{dumps(part).decode()}]"


def _fault_kind(kind: str) -> str:
    """Pass pydantic's own kinds on; a validator of the user's own may put anything there."""
    return kind if _KIND.fullmatch(kind) else "custom_error"
