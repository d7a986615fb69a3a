"""The ``[batch_llm]`` section of Airflow's configuration, read once per call and checked."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from airflow.sdk.configuration import conf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_batch_llm.core import spec
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.get_provider_info import get_provider_info

SECTION = "batch_llm"


class Settings(BaseModel):
    """All settings with their types; what they mean stands in ``get_provider_info``. Times are seconds."""

    model_config = ConfigDict(frozen=True)

    ledger_conn_id: str
    ledger_schema: str
    workspace: str
    allow_local_state: bool
    first_poll_delay: float = Field(ge=0)
    poll_interval_min: float = Field(gt=0)
    poll_interval_max: float = Field(gt=0)
    create_timeout: float = Field(gt=0)
    find_interval: float = Field(ge=0)
    probe_interval_min: float = Field(gt=0)
    probe_interval_max: float = Field(gt=0)


def read_settings() -> Settings:
    """Return the settings in force.

    :raises ConfigurationError: a value is not of its type or out of range; the message names the option.
    """
    raw = {
        name: (conf.get(SECTION, name, fallback=option["default"]) or "").strip()
        for name, option in _declared_options().items()
    }
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(
            f"airflow.cfg [{SECTION}] has values that cannot be used: {faults}"
        ) from None
    for name in ("poll_interval", "probe_interval"):
        if getattr(settings, f"{name}_max") < getattr(settings, f"{name}_min"):
            raise ConfigurationError(f"[{SECTION}] {name}_max is below {name}_min")
    return settings


def engine_settings(settings: Settings) -> spec.Settings:
    """Return the waiting times of the engine as they are set."""
    return spec.Settings(
        create_timeout=settings.create_timeout,
        look_apart=settings.find_interval,
        probe_first=settings.probe_interval_min,
        probe_max=settings.probe_interval_max,
    )


def airflow_home() -> Path:
    """Return AIRFLOW_HOME as Airflow finds it, without loading Airflow's configuration."""
    return Path(
        os.path.expandvars(os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow"))
    ).absolute()


@cache
def _declared_options() -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = get_provider_info()["config"][SECTION]["options"]
    return options
