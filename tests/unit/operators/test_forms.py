"""The forms of a job take the same arguments, and reading a DAG file that uses them costs little."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_batch_llm import BatchLLMOperator, BatchLLMSubmitOperator, RowPrompt, batch_llm_group
from airflow_batch_llm.core.model import Event
from airflow_batch_llm.decorators.batch_llm_rows import BatchLLMRowsOperator, batch_llm_rows_task
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.operators.decided import decisions

#: What a group has and a task has not: names of its own, and Airflow's arguments for all of its tasks.
OF_THE_GROUP = {"group_id", "task_args"}
#: What a task has of Airflow's own, or in the place of the group's wiring.
OF_A_TASK = {"submit_task_id", "retries"}
ROWS: dict[str, Any] = {"source": [{"id": 1}], "key": "id", "prompt": RowPrompt("x")}


def own_parameters(operator: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    """Return the parameters that an operator and its bases name, without Airflow's."""
    found: dict[str, inspect.Parameter] = {}
    for base in operator.__mro__:
        if base is BaseOperator:
            return found
        if "__init__" in vars(base):
            named = inspect.signature(base.__init__).parameters.items()
            kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            found |= {
                name: p for name, p in named if p.kind in kinds and name != "self" and name not in found
            }
    raise AssertionError(f"{operator} is no operator")


def test_the_group_and_the_one_task_take_the_same_arguments_with_the_same_defaults() -> None:
    group = inspect.signature(batch_llm_group).parameters
    task = own_parameters(BatchLLMOperator)
    assert set(group) - OF_THE_GROUP == (set(task) - OF_A_TASK) | {"outlets"}
    for name in set(group) & set(task):
        told = (group[name].default, group[name].annotation)
        # A task without a connection takes that of its job; a group has no job to take it from.
        wanted = (task[name].default, task[name].annotation)
        assert told == wanted or name == "llm_conn_id", name
    assert group["llm_conn_id"].default == task["llm_conn_id"].default


def test_a_task_made_of_a_function_takes_what_the_one_task_takes_but_the_source() -> None:
    made = set(own_parameters(BatchLLMRowsOperator)) - {
        "python_callable", "op_args", "op_kwargs", "kwargs_to_upstream", "task_id"
    }  # fmt: skip
    assert made == set(own_parameters(BatchLLMOperator))
    with (
        DAG("forms_source", schedule=None),
        pytest.raises(ConfigurationError, match="source cannot be given"),
    ):
        batch_llm_rows_task(lambda: [], task_id="t", key="id", source=[])()


def test_every_argument_of_the_one_task_can_be_fixed_or_mapped_over() -> None:
    names = set(own_parameters(BatchLLMOperator)) - {"params", "submit_task_id"}
    with DAG("forms_partial", schedule=None):
        for name in names - set(ROWS):
            made = BatchLLMOperator.partial(task_id=f"fixed_{name}", **ROWS, **{name: None})
            made._expand_called = True
            assert made.kwargs[name] is None


def test_every_form_can_mark_the_prefix_and_none_does_unasked() -> None:
    with DAG("forms_prefix", schedule=None):
        for asked in ({}, {"cache_prefix": True}):
            group = batch_llm_group(group_id=f"g{len(asked)}", **ROWS, **asked)
            rows = batch_llm_rows_task(
                lambda: [], task_id=f"rows{len(asked)}", key="id", prompt=RowPrompt("x"), **asked
            )()
            tasks = (
                group.get_child_by_label("submit"),
                rows.operator,
                BatchLLMSubmitOperator(task_id=f"submit{len(asked)}", **ROWS, **asked),
                BatchLLMOperator(task_id=f"one{len(asked)}", **ROWS, **asked),
            )
            assert {task.cache_prefix for task in tasks} == {bool(asked)}


def test_the_params_of_a_dag_are_no_request_parameters() -> None:
    with DAG("forms_params", schedule=None, params={"limit": 5, "temperature": 1}):
        plain = BatchLLMOperator(task_id="plain", **ROWS, params={"temperature": 0, "stop": ["a"]})
        none = BatchLLMSubmitOperator(task_id="none", **ROWS)
        mapped = BatchLLMOperator.partial(task_id="mapped", **ROWS, params={"top_p": 0.5}).expand(model=["m"])
        over = BatchLLMOperator.partial(task_id="over", **ROWS).expand(params=[{"top_p": 1}])
        group = batch_llm_group(group_id="g", **ROWS, params={"top_p": 0.1})
        rows = batch_llm_rows_task(
            lambda: [], task_id="rows", key="id", prompt=RowPrompt("x"), params={"n": 2}
        )()
    assert plain.request_params == {"temperature": 0, "stop": ["a"]}
    assert none.request_params == {}
    assert mapped.unmap({"model": "m"}).request_params == {"top_p": 0.5}
    assert over.unmap({"params": {"top_p": 1}}).request_params == {"top_p": 1}
    assert group.get_child_by_label("submit").request_params == {"top_p": 0.1}
    assert rows.operator.request_params == {"n": 2}
    # Airflow's own stay what they are: templates of the task see them.
    assert none.params.dump() == {"limit": 5, "temperature": 1}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"endpoint": "chats"}, "endpoint 'chats' is not known; there are chat, completions, responses"),
        ({"endpoint": None}, "endpoint is missing"),
        ({"output_schema": "Label"}, "output_schema is 'Label', which is no import path"),
        ({"output_schema": dict}, "output_schema must be a pydantic class, 'module:Class' or a JSON schema"),
        ({"validate": lambda output, row: None}, "validate is a lambda"),
        ({"validate": "no_colon"}, "'no_colon' is not an import path"),
        ({"redact": 5}, "redact is a int"),
        ({"echo": ["id"]}, "echo must be Mapping or None, not list"),
        ({"carry": {"a"}}, "carry must be a column name or a list of column names, not a set"),
        ({"samples": 0}, "samples is 0; it must be 1 or more"),
        ({"samples": True}, "samples must be int or None, not bool"),
        ({"min_rows": -1}, "min_rows is -1; it must be 0 or more"),
        ({"reuse": "job"}, "reuse must be Reuse or None, not str"),
        ({"retention": 30}, "retention must be Retention or None, not int"),
        ({"results_formats": "parquet"}, "results_formats must be list or tuple, not str"),
        ({"results_formats": ["csv"]}, "results_formats is 'csv'; it can be jsonl, parquet"),
        ({"max_dead_letter_ratio": 2}, "max_dead_letter_ratio is 2; it must be a number from 0 to 1"),
        ({"max_dead_letter_ratio": "0.5"}, "max_dead_letter_ratio must be int or float or None, not str"),
        ({"on_deadline": "wait"}, "on_deadline is 'wait'; it can be collect, fail"),
        ({"job_key": 3}, "job_key must be str or None, not int"),
        ({"job_key": " "}, "job_key is empty"),
        ({"deferrable": "yes"}, "deferrable must be bool, not str"),
        ({"cache_prefix": "1h"}, "cache_prefix must be bool, not str"),
    ],
)
def test_wrong_arguments_are_told_when_the_dag_is_read(wrong: dict[str, Any], told: str) -> None:
    for make in (
        lambda: BatchLLMOperator(task_id="t", **ROWS, **wrong),
        lambda: batch_llm_group(group_id="t", **ROWS, **wrong),
        lambda: BatchLLMOperator.partial(task_id="t", **ROWS, **wrong).expand(model=["m"]),
    ):
        with DAG("forms_wrong", schedule=None), pytest.raises(ConfigurationError, match=told) as caught:
            make()
        assert "t" in str(caught.value)


def test_what_a_person_decided_is_counted_and_what_the_machine_did_is_not() -> None:
    def event(actor: str, action: str) -> Event:
        return Event(0.0, "j", None, actor, action, "")

    machine = [event("machine", name) for name in ("round_pinned", "letters_moved", "settled", "halted")]
    people = [event("ann", name) for name in ("accepted", "resumed", "letters_moved", "round_pinned")]
    assert decisions([*machine, event("ann", "hold_released")]) == 0
    assert decisions([*machine, *people, event("ann", "cancel_decided"), event("ann", "handed_in")]) == 6


_PARSE = """
import sys
from airflow.sdk import DAG, task, task_group
import airflow.sdk.bases.decorator
before = set(sys.modules)
import airflow_batch_llm
for name in airflow_batch_llm.__all__:
    getattr(airflow_batch_llm, name)
from airflow_batch_llm import BatchLLMOperator, FileSource, Reuse, RowPrompt, SqlSink, batch_llm_group
from airflow_batch_llm.decorators.batch_llm_rows import batch_llm_rows_task
with DAG("light", schedule=None):
    values = {
        "prompt": RowPrompt("{{ row.a }}"), "output_schema": "no_such:Label", "validate": "no_such:check",
        "redact": "no_such:redact", "results_formats": ["jsonl", "parquet"], "reuse": Reuse(scope="task"),
        "sink": SqlSink("warehouse", "t", key="id"),
    }
    source = FileSource("/no/such/file.parquet", key="id")
    group = batch_llm_group(group_id="g", source=source, **values)
    BatchLLMOperator(task_id="one", source=source, **values) >> group
    BatchLLMOperator.partial(task_id="many", source=source, **values).expand(model=["a", "b"])
    batch_llm_rows_task(lambda: 1 / 0, task_id="rows", key="id", **values)()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
print(*sorted(name for name in sys.modules if name.startswith("airflow_batch_llm.")))
"""


def test_reading_a_dag_file_imports_nothing_beside_airflow_but_this_package_and_jinja() -> None:
    done = subprocess.run([sys.executable, "-c", _PARSE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    roots, ours = done.stdout.splitlines()[-2:]
    assert set(roots.split()) <= {"airflow", "croniter", "airflow_batch_llm", "jinja2"}
    heavy = ("backends.openai", "storage.ledger", "storage.engine", "hooks.", "results.parquet")
    assert [
        name for name in ours.split() if name.startswith(tuple(f"airflow_batch_llm.{h}" for h in heavy))
    ] == []
