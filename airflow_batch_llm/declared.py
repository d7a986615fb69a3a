"""What the wrappers of a DAG file have in common: sources, prompts and sinks are declared, then resolved.

A declaration is what the DAG's author wrote. It reads nothing and changes nothing until
``resolve(context)``, which renders its templated parts and returns a *new* object, so a declaration
that is shared by several task instances never keeps what one of them rendered.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from jinja2 import TemplateError

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.exceptions import ConfigurationError

Context = Mapping[str, Any]

_TEMPLATE_MARKS = ("{{", "{%", "{#")


class Declared(ABC):
    """Base of the wrappers: equal, hashed and shown by :meth:`serialize`, so stable across processes."""

    @abstractmethod
    def serialize(self) -> dict[str, Any]:
        """Return the declaration as JSON types, the same in every process. Holds no rows and no secrets."""

    @abstractmethod
    def resolve(self, context: Context) -> Any:
        """Render the templated parts and return a new object that can be used."""

    def bind(self, operator: Any) -> None:
        """Make ``operator`` run after the tasks whose results this declaration names."""
        references = list(self._templated())
        if any(True for _ in _xcom_references(references)):
            from airflow.sdk import XComArg

            XComArg.apply_upstream_relationship(operator, references)

    def _templated(self) -> Iterable[Any]:
        """Return the parts that may refer to results of other tasks."""
        return ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self.serialize().items() if k != "type" and v is not None)
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.serialize() == other.serialize()

    def __hash__(self) -> int:
        digest = hashlib.sha256(dumps_canonical([type(self).__name__, self.serialize()])).digest()
        return int.from_bytes(digest[:8], "big")


class Renderer:
    """Renders templated values as the running task would.

    :param context: Airflow's task context. Where it has no ``task`` (the command line, unit tests), a
        callable under ``render`` is used; with neither, values without template marks pass through.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        task = context.get("task")
        render = context.get("render")
        self._render: Callable[[Any], Any] | None = render
        if task is not None:
            self._render = lambda value: task.render_template(value, context)

    def __call__(self, value: Any) -> Any:
        """Return ``value`` rendered; results of other tasks in it are pulled.

        :raises ConfigurationError: it holds a template and there is nothing to render it with, or one that
            names what this run does not have (a run without a logical date has no data interval).
        """
        if self._render is not None:
            try:
                return self._render(value)
            except TemplateError as e:
                fault = f"{type(e).__name__}: {e.message or 'no message'}"
            raise ConfigurationError(f"a templated argument cannot be rendered in this run: {fault}")
        if has_template(value):
            raise ConfigurationError("a templated value can only be rendered inside a task")
        return value

    def text(self, value: Any, what: str) -> str:
        """Return ``value`` rendered to a non-empty string.

        :param what: how the error names the value.
        :raises ConfigurationError: it renders to something else.
        """
        rendered = self(value)
        if not isinstance(rendered, str) or not rendered:
            raise ConfigurationError(
                f"{what} renders to {type(rendered).__name__}, not to a non-empty string"
            )
        return rendered


def plain_argument(value: Any, what: str) -> Any:
    """Return an argument of a DAG file as JSON types that are the same in every process.

    :param what: how the error names the value.
    :raises ConfigurationError: it is of a type that has no stable form.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID, timedelta)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain_argument(v, f"{what}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_argument(v, f"{what}[{i}]") for i, v in enumerate(value)]
    if is_reference(value):
        return {"xcom": [[operator.task_id, key] for operator, key in value.iter_references()]}
    raise ConfigurationError(
        f"{what} is a {type(value).__name__}; give a string, number, date, list or mapping"
    )


def is_reference(value: Any) -> bool:
    """Say whether a value stands for another task's result (an ``XComArg``); does not import Airflow."""
    return callable(getattr(value, "iter_references", None)) and callable(getattr(value, "resolve", None))


def names(value: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return one or several column names as a tuple.

    :raises ConfigurationError: there is none, one is not a non-empty string, one is there twice, or they
        come without an order (a set has another one in every process).
    """
    if not isinstance(value, (str, list, tuple)):
        raise ConfigurationError(
            f"{what} must be a column name or a list of column names, not a {type(value).__name__}"
        )
    found = (value,) if isinstance(value, str) else tuple(value)
    if not found or not all(isinstance(name, str) and name for name in found):
        raise ConfigurationError(f"{what} must be one or more column names, not {value!r}")
    if len(set(found)) != len(found):
        raise ConfigurationError(f"{what} names a column twice: {list(found)}")
    return found


def text_argument(value: Any, what: str, *, reference: bool = False) -> Any:
    """Return an argument of a DAG file that must be text.

    :param what: how the error names the argument.
    :param reference: the result of a task, or the argument of a mapped group, will do.
    :raises ConfigurationError: it is not a non-empty string.
    """
    if reference and is_reference(value):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a string, not a {type(value).__name__}")
    if not value.strip():
        raise ConfigurationError(f"{what} is empty")
    return value


def conn_id_argument(value: Any, what: str, *, reference: bool = False) -> Any:
    """Return an argument of a DAG file that must be the id of a connection.

    :param reference: as for :func:`text_argument`.
    :raises ConfigurationError: it is not a non-empty string, or it is an address, which may hold a password.
    """
    value = text_argument(value, what, reference=reference)
    if isinstance(value, str) and "://" in value:
        raise ConfigurationError(f"{what} must be the id of an Airflow connection, not an address")
    return value


def path_argument(value: Any, what: str) -> Any:
    """Return an argument of a DAG file that must be a path: as text, or what refers to one.

    :raises ConfigurationError: it is neither a non-empty string nor a path.
    """
    if not is_reference(value) and (hasattr(value, "__fspath__") or hasattr(value, "joinpath")):
        value = str(value)
    return text_argument(value, what, reference=True)


def has_template(value: Any) -> bool:
    """Say whether there is anything to render or to pull in a value."""
    if isinstance(value, str):
        return any(mark in value for mark in _TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(has_template(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_template(v) for v in value)
    return is_reference(value)


def _xcom_references(value: Any) -> Iterable[Any]:
    if is_reference(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _xcom_references(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _xcom_references(item)
