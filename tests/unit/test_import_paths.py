"""Functions that a DAG file gives, themselves or by their import path."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.import_paths import callable_path, code_digest, load_callable


def check(output: Any, row: dict[str, Any]) -> None:
    """A validator."""


def check_loosely(*given: Any, strict: bool = False) -> None:
    """Another."""


async def check_later(output: Any, row: dict[str, Any]) -> None:
    """None that can be used."""


class Checks:
    @staticmethod
    def check(output: Any, row: dict[str, Any]) -> None:
        """One in a class."""

    def __call__(self, output: Any, row: dict[str, Any]) -> None:
        """One that is an object."""


NOTHING = None


@pytest.mark.parametrize("function", [check, check_loosely, Checks.check])
def test_a_function_and_its_path_are_the_same(function: Any) -> None:
    path = callable_path(function, "validate")

    assert path == f"{__name__}:{function.__qualname__}"
    assert load_callable(path, "validate", arguments=2) is function
    assert load_callable(function, "validate", arguments=2) is function
    assert callable_path(path, "validate") == path


def test_a_path_is_not_imported_to_be_written_down() -> None:
    assert callable_path("nowhere.at.all:check", "validate") == "nowhere.at.all:check"


def test_a_function_of_a_dag_file_has_the_same_path_and_digest_on_every_machine() -> None:
    found = []
    for prefix in ("0" * 40, "f" * 40):
        module = ModuleType(f"unusual_prefix_{prefix}_nightly")
        sys.modules[module.__name__] = module
        try:
            exec("def check(output, row): pass", module.__dict__)
            found.append((callable_path(module.check, "validate"), code_digest(module.check)))
        finally:
            del sys.modules[module.__name__]

    assert found[0] == found[1]
    assert found[0][0] == "nightly:check"


def test_the_digest_tells_functions_and_sources_apart() -> None:
    assert len({code_digest(check), code_digest(check_loosely), code_digest(Checks.check)}) == 3
    assert code_digest(len) == code_digest(len)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda output, row: None, "validate is a lambda: other processes cannot import it"),
        (functools.partial(check), "validate is a partial, which has no import path"),
        (Checks(), "validate is a Checks, which has no import path"),
        (Checks, "validate is a type; give a function"),
        (5, "validate is a int; give a function"),
        ("check", "not an import path"),
        (":check", "not an import path"),
        ("module:", "not an import path"),
    ],
)
def test_what_no_path_leads_to_is_refused_at_once(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        callable_path(value, "validate")


def test_a_function_inside_a_function_is_refused_by_its_name() -> None:
    def inner(output: Any, row: dict[str, Any]) -> None:
        """Gone in the next process."""

    with pytest.raises(ConfigurationError, match="<locals>.inner', a function inside a function"):
        callable_path(inner, "validate")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere_at_all:check", "validate: cannot import module 'nowhere_at_all'"),
        (f"{__name__}:nope", "validate: module .* has no 'nope'"),
        (f"{__name__}:NOTHING", "is a NoneType, not a function"),
        (f"{__name__}:Checks", "is a type, not a function"),
        (check_later, "is a coroutine function"),
        (callable_path, "does not take 3 arguments"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_callable(value, "validate", arguments=3)
