"""Decides whether what a row says is an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_batch_llm.core.drafts import AnswerMismatch, AnswerSchema
from airflow_batch_llm.core.model import Asked, Row
from airflow_batch_llm.core.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Judge:
    """Checks answers that the protocol calls good against what the caller asked for.

    Its fingerprint stands beside the outcomes it decided: with another judge, outcomes are made
    again from the raw rows.
    """

    schema: AnswerSchema | None = None

    @property
    def fingerprint(self) -> str:
        """What decides: changes when the schema does."""
        return self.schema.fingerprint if self.schema is not None else "text"

    def check(self, row: Row, asked: Asked | None = None) -> tuple[Verdict, str, str]:
        """Return verdict, code and message of a decoded row.

        :param asked: whose answer it has to be.
        """
        if row.verdict is not Verdict.OK or self.schema is None:
            return row.verdict, row.code, row.message
        if row.text is None:
            return Verdict.INVALID_OUTPUT, "no_text", row.message
        try:
            self.schema.parse(row.text)
        except AnswerMismatch as e:
            return Verdict.INVALID_OUTPUT, e.code, e.where
        except ValueError:
            return Verdict.INVALID_OUTPUT, "schema_mismatch", row.message
        return Verdict.OK, row.code, row.message

    def output(self, row: Row) -> Any:
        """Return the answer of a row that :meth:`check` called ok."""
        if row.text is None:
            return row.output
        if self.schema is None:
            return row.text
        return self.schema.parse(row.text)
