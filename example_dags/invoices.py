"""What ``invoice_extraction`` asks of an invoice, and what an answer must satisfy beyond its form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Invoice(BaseModel):
    """One answer: columns of table ``invoices``."""

    model_config = ConfigDict(extra="forbid")

    invoice_no: str = Field(description="As printed.")
    supplier: str
    issued_on: date
    currency: Literal["EUR", "USD", "GBP"]
    net: float = Field(ge=0)
    tax: float = Field(ge=0)
    total: float = Field(ge=0)


def totals_add_up(output: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Return why an answer cannot be right: its sums do not agree."""
    if abs(output["net"] + output["tax"] - output["total"]) > 0.01:
        return "net and tax do not add up to total"
    return None
