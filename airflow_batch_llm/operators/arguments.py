"""What the arguments of the operators may be, seen when a DAG file is parsed and again when a task runs.

An argument that is templated, or refers to another task's result or to the argument of a mapped group, is
known only in the running task: it is checked there, before anything is read or sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_batch_llm.declared import Context, has_template, is_reference
from airflow_batch_llm.exceptions import ConfigurationError


def is_pending(value: Any) -> bool:
    """Say whether a value is known only when the task runs."""
    return is_reference(value) or (isinstance(value, str) and has_template(value))


def check_types(task_id: str, **arguments: tuple[Any, Any]) -> None:
    """See that arguments are of their types.

    :param arguments: name -> (value, type or types).
    :raises ConfigurationError: one is not; the message names task, argument and types.
    """
    for name, (value, kinds) in arguments.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
            continue
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigurationError(f"{task_id}: {name} must be {wanted}, not {type(value).__name__}")


def check_text(task_id: str, **arguments: Any) -> None:
    """See that arguments are non-empty text, or None. Those not known yet pass."""
    for name, value in arguments.items():
        if is_pending(value):
            continue
        check_types(task_id, **{name: (value, (str, type(None)))})
        if value is not None and not value.strip():
            raise ConfigurationError(f"{task_id}: {name} is empty")


def check_schema(task_id: str, schema: Any) -> None:
    """See that an output schema is of a kind that can be one; nothing is imported.

    :raises ConfigurationError: it is not.
    """
    if schema is None or isinstance(schema, Mapping) or hasattr(schema, "json_schema"):
        return
    if isinstance(schema, str):
        module, _, name = schema.partition(":")
        if not module or not name:
            raise ConfigurationError(
                f"{task_id}: output_schema is {schema!r}, which is no import path; write it as 'module:Class'"
            )
    elif not hasattr(schema, "model_json_schema"):
        told = schema.__name__ if isinstance(schema, type) else type(schema).__name__
        raise ConfigurationError(
            f"{task_id}: output_schema must be a pydantic class, 'module:Class' or a JSON schema, not {told}"
        )


def chosen(task_id: str, name: str, value: Any, choices: Collection[str]) -> Any:
    """Return an argument that is one of a few words, or is not known yet.

    :raises ConfigurationError: it is another; the message lists them.
    """
    if not is_pending(value) and value not in set(choices):
        raise ConfigurationError(f"{task_id}: {name} is {value!r}; it can be {', '.join(choices)}")
    return value


def number(
    task_id: str,
    name: str,
    value: Any,
    *,
    least: float,
    most: float | None = None,
    whole: bool = True,
    rendered: bool = False,
) -> Any:
    """Return a number within its bounds. None passes, and so does what is not known yet.

    :param rendered: templates are rendered: what they made is text, and is read as a number.
    :raises ConfigurationError: it is none, or out of bounds.
    """
    if value is None or is_pending(value):
        return value
    if rendered and isinstance(value, str):
        try:
            value = int(value) if whole else float(value)
        except ValueError:
            told = "a whole number" if whole else "a number"
            raise ConfigurationError(f"{task_id}: {name} does not render to {told}") from None
    check_types(task_id, **{name: (value, (int, type(None)) if whole else (int, float, type(None)))})
    if not least <= value or (most is not None and not value <= most):
        bounds = f"{least} or more" if most is None else f"a number from {least} to {most}"
        raise ConfigurationError(f"{task_id}: {name} is {value}; it must be {bounds}")
    return value


def resolved(value: Any, context: Context) -> Any:
    """Return a value with the references in it replaced by what they refer to. Text stays as it is."""
    if is_reference(value):
        return value.resolve(context)
    if isinstance(value, Mapping):
        return {name: resolved(item, context) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolved(item, context) for item in value]
    return value


def own_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the request parameters among what Airflow hands to an operator as ``params``.

    Airflow has an argument of that name too, and merges the DAG's and the group's params into it.
    """
    get_param = getattr(params, "get_param", None)
    if params is None or get_param is None:
        return dict(params or {})
    return {name: params[name] for name in params if get_param(name).source == "task"}


def request_params(task_id: str, params: Any) -> dict[str, Any]:
    """Return request parameters as a dict. :raises ConfigurationError: they are no mapping of names."""
    check_types(task_id, params=(params, (Mapping, type(None))))
    for name in params or {}:
        check_types(task_id, **{"a name in params": (name, str)})
    return dict(params or {})
