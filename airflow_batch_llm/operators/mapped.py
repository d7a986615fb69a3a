"""``partial().expand()`` of the operators: what Airflow does not see in their arguments, done here.

Airflow looks for results of other tasks in template fields only, stores a mapped task's arguments with the
DAG, and makes the operator, which checks its arguments, only when the task runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_batch_llm.declared import Declared, is_reference
from airflow_batch_llm.sources.rows import as_source


class BatchLLMPartial(OperatorPartial):
    """What ``partial()`` of our operators returns."""

    @classmethod
    def of(cls, made: OperatorPartial) -> BatchLLMPartial:
        """Take over what Airflow made."""
        made._expand_called = True  # its place is taken: it is not forgotten
        return cls(operator_class=made.operator_class, kwargs=_without_rows(made.kwargs), params=made.params)

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        """Map over lists; see Airflow's ``expand``."""
        key = self.kwargs.get("key")
        sources = mapped_kwargs.get("source")
        if key is not None and isinstance(sources, (list, tuple)):
            mapped_kwargs["source"] = [as_source(source, key) for source in sources]
        return super().expand(**mapped_kwargs)

    def _expand(self, *args: Any, **kwargs: Any) -> MappedOperator:
        mapped = super()._expand(*args, **kwargs)
        bind_mapped(mapped)
        check_mapped(mapped)
        return mapped


def bind_mapped(mapped: MappedOperator) -> None:
    """Let a mapped task run after those whose results its arguments name."""
    for value in mapped.partial_kwargs.values():
        _bind(mapped, value)
    for values in _mapped_values(mapped):
        for value in values.values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                _bind(mapped, item)


def check_mapped(mapped: MappedOperator) -> None:
    """See that the arguments are of their types, as far as they are known when the DAG is parsed.

    :raises ConfigurationError: one is not.
    """
    for values in _mapped_values(mapped):
        for known in _in_turn(values):
            mapped.unmap(known)


def _in_turn(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments such that each value that is mapped over stands in one of them."""
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in values.items()}
    for place in range(max((len(items) for items in lists.values()), default=0)):
        yield {name: items[min(place, len(items) - 1)] for name, items in lists.items() if items}


def _mapped_values(mapped: MappedOperator) -> list[dict[str, Any]]:
    """Return what is mapped over, as far as it is written down in the DAG file."""
    value: Any = mapped._get_specified_expand_input().value
    if isinstance(value, Mapping):
        return [dict(value)]
    if is_reference(value):
        return []
    return [{name: [item] for name, item in entry.items()} for entry in value if isinstance(entry, Mapping)]


def _bind(mapped: MappedOperator, value: Any) -> None:
    if isinstance(value, Declared):
        value.bind(mapped)
    elif is_reference(value):
        XComArg.apply_upstream_relationship(mapped, value)


def _without_rows(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with rows made into a source: Airflow stores arguments with the DAG."""
    if isinstance(kwargs.get("source"), (list, tuple)) and kwargs.get("key") is not None:
        return {**kwargs, "source": as_source(kwargs["source"], kwargs["key"])}
    return dict(kwargs)
