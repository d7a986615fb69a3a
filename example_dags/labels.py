"""What ``nightly_ticket_labels`` and ``few_shot_ticket_kinds`` ask about a ticket.

Plain pydantic; importable by tasks and by people.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Category(StrEnum):
    """What the customer wants, in one word."""

    BILLING = "billing"
    BUG = "bug"
    HOW_TO = "how_to"
    ACCOUNT_ACCESS = "account_access"
    CANCELLATION = "cancellation"
    FEATURE_REQUEST = "feature_request"
    SHIPPING = "shipping"
    SECURITY = "security"
    PRAISE = "praise"
    OTHER = "other"


class Urgency(StrEnum):
    """How soon somebody has to look."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class Language(StrEnum):
    """The language to answer in (ISO 639-1)."""

    ENGLISH = "en"
    FRENCH = "fr"
    GERMAN = "de"
    JAPANESE = "ja"
    SPANISH = "es"
    OTHER = "other"


class TicketKind(BaseModel):
    """The column of table ``ticket_kinds``: one word, which a very small model can choose."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["billing", "problem", "question", "cancellation", "praise"]


class TicketLabel(BaseModel):
    """One label per ticket: the columns of table ``ticket_labels``."""

    model_config = ConfigDict(extra="forbid")

    category: Category
    urgency: Urgency
    language: Language
    needs_human: bool = Field(description="True where a standard answer would not do.")
    summary: str = Field(max_length=160, description="One sentence in English, without names.")
