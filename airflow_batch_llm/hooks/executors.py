"""Whether the tasks of this deployment all run on the scheduler's machine."""

from __future__ import annotations

import os
from importlib import import_module

from airflow.sdk.configuration import conf

#: Set by KubernetesExecutor in each pod that it starts for a task.
_KUBERNETES_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"
_LOCAL = frozenset({"LocalExecutor", "SequentialExecutor"})
_LOCAL_PATHS = frozenset(
    {
        "airflow.executors.local_executor.LocalExecutor",
        "airflow.executors.sequential_executor.SequentialExecutor",
    }
)


def remote_executors() -> list[str]:
    """Return the configured executors whose workers may sit on other hosts, as they are written.

    Reads ``[core] executor``: names, module paths, ``alias:name``, lists of these, and lists per team
    (``LocalExecutor;team1=CeleryExecutor``).
    """
    configured: str = conf.get("core", "executor", fallback="LocalExecutor")
    if os.environ.get(_KUBERNETES_POD):
        # The pods of KubernetesExecutor are told to run LocalExecutor inside.
        return ["KubernetesExecutor"]
    entries = [
        entry.strip()
        for team in configured.split(";")
        for entry in team.rpartition("=")[2].split(",")
        if entry.strip()
    ]
    return [entry for entry in entries if not _is_local(entry.rpartition(":")[2].strip())]


def _is_local(name: str) -> bool:
    if name in _LOCAL or name in _LOCAL_PATHS:
        return True
    module, _, attribute = name.rpartition(".")
    if not module:
        return False
    # Somebody's own executor: local when it is a kind of LocalExecutor. One that cannot be imported
    # here is none of this machine's business, so it counts as remote.
    try:
        candidate = getattr(import_module(module), attribute)
        local = import_module("airflow.executors.local_executor").LocalExecutor
        return isinstance(candidate, type) and issubclass(candidate, local)
    except Exception:
        return False
