"""What a finished job says to those who wait for it: counts with the events of the task's outlets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetRef

if TYPE_CHECKING:
    from airflow.sdk import Context


def tell_outlets(context: Context, outlets: Iterable[Any], told: Mapping[str, Any]) -> None:
    """Put counts and the address of the results beside the event of each outlet that is an asset.

    Airflow makes the events where the task ends green. An alias names no asset: who uses one adds its own.

    :param told: the task's XCom.
    """
    counts = told["counts"]
    extra = {
        "job_id": told["job_id"],
        "rows": counts.get("rows", 0),
        "answered": counts.get("answered", 0),
        "dead": counts.get("dead", 0),
        "reused": counts.get("reused", 0),
        "results": told["results"],
    }
    for outlet in outlets:
        if isinstance(outlet, (Asset, AssetRef)):
            context["outlet_events"][outlet].extra.update(extra)
