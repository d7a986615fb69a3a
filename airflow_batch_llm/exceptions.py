"""The errors of this package.

Each class has a stable ``code`` (a heading of the runbook) and says whether trying again can help:
``deterministic`` errors come back with the same input, so operators raise them as
``AirflowFailException``; the others follow Airflow's ``retries``.

Messages name the batch, row or field and what to do next. They never hold a prompt, an answer, a
secret or a provider's error text, because Airflow logs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class BatchLLMError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "BLLM-000"
    deterministic: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class ConfigurationError(BatchLLMError):
    """A connection, setting or argument cannot work as given."""

    code = "BLLM-001"


class LocalStateError(ConfigurationError):
    """A ledger or workspace on a local disk with an executor whose workers may sit on other hosts."""

    code = "BLLM-002"


class LedgerSchemaError(BatchLLMError):
    """The ledger's tables are missing, older or newer than this version of the package."""

    code = "BLLM-003"


class InputError(BatchLLMError):
    """The rows or requests cannot be sent as they are. Raised before any money is spent."""

    code = "BLLM-010"


class CustomIdError(InputError):
    """Ids that are missing, empty, repeated or not strings; the message lists the lines."""

    code = "BLLM-010"


class SourceError(InputError):
    """A source that cannot be read as declared: a broken line, an unknown column, a wrong key."""

    code = "BLLM-011"


class PromptError(InputError):
    """A prompt template that does not compile, or names a column the rows do not have."""

    code = "BLLM-012"


class OutputSchemaError(InputError):
    """An output schema that cannot be loaded, or that the protocol would refuse."""

    code = "BLLM-013"


class EmptySourceError(InputError):
    """The source returned no row and ``on_empty="fail"``."""

    code = "BLLM-014"


class ResultsError(InputError):
    """Results that cannot be read: no such job, not settled yet, nothing published, or purged."""

    code = "BLLM-017"


class FileUnavailable(BatchLLMError):
    """The storage of a file that a row names (an image) does not answer. Try again later."""

    code = "BLLM-019"
    deterministic = False


class TooFewRows(InputError):
    """The source returned fewer rows than ``min_rows``: what fills it is likely broken."""

    code = "BLLM-018"


class DatabaseUnavailable(BatchLLMError):
    """The database of a source or a sink does not answer. Try again later."""

    code = "BLLM-016"
    deterministic = False


class ProviderError(BatchLLMError):
    """Something the provider said, or failed to say, about a call of ours.

    ``conn_id`` is the connection that the call was made with, where the error was told later than it was met.
    """

    code = "BLLM-022"
    deterministic = False
    conn_id: str | None = None


class Unreachable(ProviderError):
    """No usable reply after the retries allowed: connection refused, time-outs, 5xx. Try again later.

    ``retry_after`` is in seconds, None where the provider named no time.
    """

    code = "BLLM-022"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AuthError(ProviderError):
    """401 or 403: the key is wrong, revoked or lacks a permission."""

    code = "BLLM-020"
    deterministic = True


class AccountError(ProviderError):
    """The account cannot pay or is not allowed to (no credit, spend limit)."""

    code = "BLLM-021"
    deterministic = True


class RateLimited(ProviderError):
    """The provider refused *for now* and did nothing: 429, or its queue is full.

    ``retry_after`` is in seconds, None where the provider named no time.
    """

    code = "BLLM-024"

    def __init__(
        self, message: str, *, retry_after: float | None = None, reason: str = "rate_limited"
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.reason = reason


class Refused(ProviderError):
    """The provider refused this very call for good and did nothing (other 4xx).

    ``reason`` is its error code, or the name of what cannot be sent: a short token, else ``refused``, as a
    name out of a row may hold anything.
    """

    code = "BLLM-023"
    deterministic = True

    def __init__(self, message: str, *, status_code: int | None = None, reason: str = "refused") -> None:
        super().__init__(message)
        self.status_code = status_code
        self.reason = reason if _TOKEN.fullmatch(reason) else "refused"


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that a provider refuses. ``line`` counts from 1, None where it names none; ``message`` goes to
    the dead-letter table only, never to a log."""

    line: int | None
    code: str
    message: str = ""


class LinesRefused(Refused):
    """The provider checked a whole file, or all requests of a create call, refused it and did nothing.

    ``lines`` are the faults it names; empty where it only says that something in it is wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        lines: Sequence[RefusedLine] = (),
        status_code: int | None = None,
        reason: str = "lines_refused",
    ) -> None:
        super().__init__(message, status_code=status_code, reason=reason)
        self.lines = tuple(lines)


class InDoubt(ProviderError):
    """A create call whose effect is unknown (time-out, reset, 5xx): look before sending it again."""

    code = "BLLM-025"


class NotFound(ProviderError):
    """404 on a direct GET of something by its id."""

    code = "BLLM-026"


class TransferError(ProviderError):
    """An upload or download that did not arrive whole (bytes or digest differ). Safe to repeat."""

    code = "BLLM-027"


class JobHalted(BatchLLMError):
    """The job waits for a person. What is paid was landed; the rest is pending."""

    code = "BLLM-030"


class LedgerLost(JobHalted):
    """The ledger does not know this job although the provider holds batches of it."""

    code = "BLLM-033"


class ClearedAlone(BatchLLMError):
    """``submit`` was cleared while later tasks of the job have already finished."""

    code = "BLLM-034"


class TakenOver(BatchLLMError):
    """A later clear of the task has taken the job over: this try is of an earlier one and stops."""

    code = "BLLM-035"


class JobKeyTaken(BatchLLMError):
    """Two submitting tasks of one run share a ``job_key``: the second one's rows would never be sent."""

    code = "BLLM-036"


class DeadLetterLimit(BatchLLMError):
    """More dead letters than ``max_dead_letter_ratio`` allows. Everything else has been published."""

    code = "BLLM-040"


class AllRowsFailed(DeadLetterLimit):
    """Not one row of the job has an answer."""

    code = "BLLM-041"


class AccountingError(BatchLLMError):
    """The sums over rows do not agree. Nothing is published or closed."""

    code = "BLLM-042"


class WorkspaceError(BatchLLMError):
    """A file of the workspace is missing or not what the ledger says it is (size, digest)."""

    code = "BLLM-050"
    deterministic = False


class JobPurged(BatchLLMError):
    """What this step needs of the job's requests or answers was purged."""

    code = "BLLM-051"


class SinkError(BatchLLMError):
    """Answers could not be written to the table asked for."""

    code = "BLLM-060"


class LedgerUnavailable(BatchLLMError):
    """The ledger's database does not answer. Try again later."""

    code = "BLLM-004"
    deterministic = False
