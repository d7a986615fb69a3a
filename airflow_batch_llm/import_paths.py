"""Python objects named as ``module:qualified.name``, and the name of an object."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from airflow_batch_llm.exceptions import ConfigurationError

#: Airflow imports a DAG file under ``unusual_prefix_<sha1 of its path>_<name>``: the digest differs
#: from machine to machine, so it must not reach anything that is compared.
_DAG_FILE_PREFIX = re.compile(r"^unusual_prefix_[0-9a-f]{40}_")


def load_path(path: str) -> Any:
    """Import what ``module:qualified.name`` names.

    :raises ConfigurationError: the path is malformed, or the module or the name in it cannot be had.
    """
    module_name, separator, qualname = path.partition(":")
    if not separator or not module_name or not qualname:
        raise ConfigurationError(f"{path!r} is not an import path; write it as 'package.module:Name'")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as e:
        raise ConfigurationError(
            f"cannot import module {module_name!r} of {path!r}: {type(e).__name__}: {e}"
        ) from e
    except Exception as e:
        raise ConfigurationError(
            f"module {module_name!r} of {path!r} fails on import with {type(e).__name__}"
        ) from e
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as e:
            raise ConfigurationError(
                f"module {module_name!r} has no {qualname!r} ({part!r} is missing)"
            ) from e
    return found


def path_of(value: Any) -> str:
    """Return ``module:qualified.name`` of a class or function, the same in every process."""
    module = _DAG_FILE_PREFIX.sub("", str(value.__module__))
    return f"{module}:{value.__qualname__}"


def callable_path(value: Any, what: str) -> str:
    """Return ``module:function`` of a function that a DAG file gives, itself or by that path.

    Nothing is imported: a path is taken as it is.

    :param what: how errors name the argument.
    :raises ConfigurationError: it is neither, or a function that no import path leads to: a lambda, one
        inside another function, an object that can be called, a partial.
    """
    if isinstance(value, str):
        module, separator, name = value.partition(":")
        if not separator or not module or not name:
            raise ConfigurationError(
                f"{what}: {value!r} is not an import path; write it as 'module:function'"
            )
        return value
    if not callable(value) or isinstance(value, type):
        raise ConfigurationError(f"{what} is a {type(value).__name__}; give a function or 'module:function'")
    name = getattr(value, "__qualname__", "")
    if not name or not getattr(value, "__module__", None):
        raise ConfigurationError(
            f"{what} is a {type(value).__name__}, which has no import path; give a function of a module"
        )
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else f"{name!r}, a function inside a function"
        raise ConfigurationError(
            f"{what} is {kind}: other processes cannot import it; define it at the top of a module"
        )
    return path_of(value)


def load_callable(value: Any, what: str, *, arguments: int) -> Callable[..., Any]:
    """Return the function that a DAG file gives, itself or by its import path.

    :param what: how errors name the argument.
    :param arguments: how many arguments it is called with.
    :raises ConfigurationError: it has no import path (:func:`callable_path`), cannot be imported, is no
        function, is a coroutine function, or does not take that many arguments.
    """
    path = callable_path(value, what)
    found = value
    if isinstance(value, str):
        try:
            found = load_path(path)
        except ConfigurationError as e:
            raise ConfigurationError(f"{what}: {e.args[0]}") from e
        if not callable(found) or isinstance(found, type):
            raise ConfigurationError(f"{what}: {path!r} is a {type(found).__name__}, not a function")
    if inspect.iscoroutinefunction(found):
        raise ConfigurationError(f"{what}: {path!r} is a coroutine function; give a plain one")
    try:
        inspect.signature(found).bind(*range(arguments))
    except TypeError:
        raise ConfigurationError(f"{what}: {path!r} does not take {arguments} arguments") from None
    except ValueError:
        pass  # a builtin without a signature
    loaded: Callable[..., Any] = found
    return loaded


def code_digest(function: Callable[..., Any]) -> str:
    """Digest what a function is called and how its source reads, as hexadecimal.

    The same in every process; functions that it calls in turn are not part of it.
    """
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(f"{path_of(function)}\n{source}".encode()).hexdigest()
