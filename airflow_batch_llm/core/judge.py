"""Decides whether what a row says is an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.core.drafts import AnswerMismatch, AnswerSchema
from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import Asked, Row
from airflow_batch_llm.core.verdicts import VALIDATOR_FAILED, Verdict
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.import_paths import code_digest, path_of

#: ``validate(output, row)``: None where the output is right, else the reason why it is not; may also raise
#: ``ValueError`` with the reason.
Validate = Callable[[Any, dict[str, Any]], str | None]

#: Codes of answers that fit the schema and are no answers all the same.
REJECTED, ECHO_MISMATCH = "rejected", "echo_mismatch"
#: Names the request's id among the columns of a row.
CUSTOM_ID = "custom_id"
#: Characters of a validator's reason that are kept.
_REASON_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Judge:
    """Checks answers that the protocol calls good against what the caller asked for.

    Its fingerprint stands beside the outcomes it decided: with another judge, outcomes are made
    again from the raw rows.

    :param schema: what a structured answer must be.
    :param validate: has the last word on an answer that fits; a function of a module.
    :param echo: field of the answer -> column of the asked row (or ``custom_id``) that it must repeat.
    """

    schema: AnswerSchema | None = None
    validate: Validate | None = None
    echo: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """What decides: changes when the schema, the validator's source or the echo does."""
        form = self.schema.fingerprint if self.schema is not None else "text"
        if not self.needs_asked:
            return form
        code = code_digest(self.validate) if self.validate is not None else None
        return hashlib.sha256(dumps_canonical(["judge", form, code, dict(self.echo)])).hexdigest()

    @property
    def needs_asked(self) -> bool:
        """Whether :meth:`check` looks at what was asked."""
        return self.validate is not None or bool(self.echo)

    def check(self, row: Row, asked: Asked | None = None) -> tuple[Verdict, str, str]:
        """Return verdict, code and message of a decoded row.

        :param asked: whose answer it has to be; must be given where :attr:`needs_asked` says so.
        :raises ConfigurationError: ``echo`` names a column that the asked row does not have.
        """
        if row.verdict is not Verdict.OK:
            return row.verdict, row.code, row.message
        if self.schema is None:
            output = row.text if row.text is not None else row.output
        elif row.text is None:
            return Verdict.INVALID_OUTPUT, "no_text", row.message
        else:
            try:
                output = self.schema.parse(row.text)
            except AnswerMismatch as e:
                return Verdict.INVALID_OUTPUT, e.code, e.where
            except ValueError:
                return Verdict.INVALID_OUTPUT, "schema_mismatch", row.message
        if self.needs_asked:
            fault = self._fault_of(output, asked)
            if fault is not None:
                return (Verdict.INVALID_OUTPUT, *fault)
        return Verdict.OK, row.code, row.message

    def output(self, row: Row) -> Any:
        """Return the answer of a row that :meth:`check` called ok; nothing is checked that need not be.

        :raises ValueError: there is no way to read it as an answer.
        """
        if row.text is None:
            return row.output
        if self.schema is None:
            return row.text
        return self.schema.read(row.text)

    def _fault_of(self, output: Any, asked: Asked | None) -> tuple[str, str] | None:
        """Return code and message of what is wrong with an answer that fits its schema."""
        if asked is None:
            raise TypeError("this judge must be told what was asked")
        row = {CUSTOM_ID: asked.custom_id, **asked.row()}
        for name, column in self.echo.items():
            if column not in row:
                raise ConfigurationError(
                    f"echo names column {column!r}, which is neither a key column nor carried; there are: "
                    f"{', '.join(sorted(row))}"
                )
            if not isinstance(output, Mapping) or name not in output or not _same(output[name], row[column]):
                return ECHO_MISMATCH, f"{name!r} does not repeat column {column!r}"
        if self.validate is None:
            return None
        return _validated(self.validate, output, row)


def _same(told: Any, asked: Any) -> bool:
    """Say whether a value was repeated: models write numbers as text and text as numbers."""
    if isinstance(told, bool) or isinstance(asked, bool):
        return told is asked
    return bool(told == asked) or (
        isinstance(told, (str, int, float))
        and isinstance(asked, (str, int, float))
        and str(told) == str(asked)
    )


def _validated(validate: Validate, output: Any, row: dict[str, Any]) -> tuple[str, str] | None:
    """Ask the validator. A fault of its own is told by its kind and place: its words may quote the answer."""
    try:
        reason = validate(output, row)
    except ValueError as e:
        reason = str(e)
    except Exception as e:
        return VALIDATOR_FAILED, f"{path_of(validate)} failed with {type(e).__name__}{_place_of(e)}"
    if reason is None:
        return None
    if not isinstance(reason, str):
        return VALIDATOR_FAILED, (
            f"{path_of(validate)} returned a {type(reason).__name__}, neither None nor a reason"
        )
    return REJECTED, reason[:_REASON_LIMIT].encode("utf-8", "replace").decode("utf-8")


def _place_of(error: Exception) -> str:
    """Return `` in line n of file`` of where an exception arose."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f" in line {trace.tb_lineno} of {file}"
