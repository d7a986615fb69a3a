"""What ``rows_judged`` asks for. The tests rewrite their copy of this file, as a person would."""

from __future__ import annotations

from pydantic import BaseModel, field_validator


class Answer(BaseModel):
    """One word; the validator is strict at first."""

    word: str

    @field_validator("word")
    @classmethod
    def _fits(cls, word: str) -> str:
        if len(word) > 0:  # no word is good enough
            raise ValueError("refused")
        return word
