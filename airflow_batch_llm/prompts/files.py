"""Files beside a DAG that prompts are read from when the task runs."""

from __future__ import annotations

import os

from airflow_batch_llm.declared import Context
from airflow_batch_llm.exceptions import PromptError


def dag_folder(context: Context) -> str:
    """Return the folder of the DAG file, "" where there is none (the command line, unit tests)."""
    dag_file = getattr(context.get("dag"), "fileloc", None)
    return os.path.dirname(dag_file) if dag_file else ""


def read_file(path: str, context: Context, what: str) -> bytes:
    """Read a file: local (relative to the DAG file's folder) or any address of ``ObjectStoragePath``.

    :param what: how errors name the file.
    :raises PromptError: there is no such file.
    """
    from airflow_batch_llm.sources.locations import open_location

    if "://" not in path and not os.path.isabs(path):
        path = os.path.join(dag_folder(context), path)
    try:
        with open_location(path) as file:
            return bytes(file.read())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise PromptError(f"there is no {what} {path}") from None
    except PermissionError:
        raise PromptError(f"{what} {path} may not be read") from None


def read_text(path: str, context: Context, what: str) -> str:
    """Read a text file in UTF-8. :raises PromptError: there is none, or it is not UTF-8."""
    try:
        return read_file(path, context, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PromptError(f"{what} {path} is not UTF-8") from None
