"""``@task.batch_llm_rows``: a function returns rows, and the task sends them and accounts for every one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset
from airflow.sdk.bases.decorator import (
    DecoratedOperator,
    KeywordParameters,
    TaskDecorator,
    _TaskDecorator,
    is_async_callable,
)
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.operators.base import RETRIES
from airflow_batch_llm.operators.batch_llm import BatchLLMOperator
from airflow_batch_llm.operators.mapped import bind_mapped
from airflow_batch_llm.sources.function import FunctionSource

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

#: Longest text argument of the function that Airflow keeps as the task's rendered fields.
_SHOWN = 200


class BatchLLMRowsOperator(DecoratedOperator, BatchLLMOperator):
    """The task that :func:`batch_llm_rows_task` makes of a function.

    :param python_callable: the function. It returns rows (a list or an iterator of dicts) or a reference to
        a file with rows.
    :param op_args: its positional arguments.
    :param op_kwargs: its arguments by name.
    :param key: the columns that name a row.
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *BatchLLMOperator.template_fields)
    custom_operator_name = "@task.batch_llm_rows"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        key: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        name = getattr(python_callable, "__name__", "the function")
        if "source" in kwargs:
            raise ConfigurationError(f"{name}: the rows come from the function; source cannot be given")
        if key is None:
            raise ConfigurationError(f"{name}: key is missing: name the columns that make a row unique")
        if is_async_callable(python_callable) or inspect.isasyncgenfunction(python_callable):
            raise ConfigurationError(f"{name} is a coroutine function; give a plain one")
        kwargs["multiple_outputs"] = False
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            source=FunctionSource(python_callable, key=key),
            **kwargs,
        )
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def call_function(self, context: Context) -> Any:
        """Call the function as ``@task`` does: its own arguments, and what it names of the context."""
        args, kwargs = self._arguments
        known = {**context, **kwargs}
        return self.python_callable(
            *args, **KeywordParameters.determine(self.python_callable, args, known).unpacking()
        )

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        """Render, then keep the function's arguments out of what Airflow stores of the rendered fields.

        They may be rows of another task; containers and long texts are shown by their size.
        """
        super()._do_render_template_fields(*args, **kwargs)
        self._arguments = (tuple(self.op_args), dict(self.op_kwargs))
        self.op_args = [_shown(value) for value in self.op_args]
        self.op_kwargs = {name: _shown(value) for name, value in self.op_kwargs.items()}


class _RowsDecorator(_TaskDecorator):
    """Airflow's decorator object; a mapped task waits for what its arguments name, too."""

    def _expand(self, expand_input: Any, *, strict: bool) -> XComArg:
        result = super()._expand(expand_input, strict=strict)
        ((mapped, _),) = result.iter_references()
        assert isinstance(mapped, MappedOperator)
        mapped.partial_kwargs.setdefault("retries", RETRIES)  # for the scheduler, which makes no operator
        bind_mapped(mapped)
        if isinstance(expand_input.value, Mapping):
            arguments = {name: _first(value) for name, value in expand_input.value.items()}
            mapped.unmap({"op_kwargs": arguments})
        return result


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, (list, tuple)) and values else values


def batch_llm_rows_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function that returns rows: they are sent in batches and accounted for, one by one.

    The function runs in the worker when the source is read: once for each revision of the job, not in a
    retry that goes on and not after the wait. Its rows are streamed, none goes through XCom.

    :param python_callable: the function.
    :param kwargs: arguments of :class:`BatchLLMOperator` but ``source``; ``key`` is required.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise TypeError("@task.batch_llm_rows takes arguments by name only")
        return _RowsDecorator(
            function=function,
            operator_class=BatchLLMRowsOperator,
            multiple_outputs=False,
            kwargs=dict(kwargs),
        )

    return cast("TaskDecorator", decorate if python_callable is None else decorate(python_callable))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _SHOWN else f"<text of {len(value)} characters>"
    # Airflow itself looks for assets among the arguments.
    if value is None or isinstance(value, (int, float, bool, Asset)):
        return value
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"<{type(value).__name__}{size}>"
