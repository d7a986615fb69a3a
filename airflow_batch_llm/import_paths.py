"""Python objects named as ``module:qualified.name``, and the name of an object."""

from __future__ import annotations

import importlib
import re
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
