"""What cannot be done with single batches of a job, told when the others were looked at."""

from __future__ import annotations

from collections import Counter

from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    InDoubt,
    ProviderError,
    RateLimited,
    Unreachable,
)

#: Why something of a batch cannot be done with its connection.
Cannot = ProviderError | ConfigurationError
#: So many calls of a connection in a row that do not get through mean that none will.
_IN_VAIN = 3


class Failures:
    """One batch must not keep the others from being looked at and read: its fault is raised after them."""

    def __init__(self) -> None:
        self._errors: list[Cannot] = []
        self._failed: set[str] = set()
        self._worked: set[str] = set()
        self._in_vain = Counter[str]()

    def add(self, conn_id: str, error: Cannot) -> None:
        """Note why a batch of a connection cannot be looked at."""
        self.add_refusal(conn_id, error)
        if isinstance(error, RateLimited):
            self._in_vain[conn_id] = _IN_VAIN
        elif isinstance(error, Unreachable | AuthError | AccountError | InDoubt):
            self._in_vain[conn_id] += 1

    def add_refusal(self, conn_id: str, error: Cannot) -> None:
        """Note why something else cannot be done with a batch, which was looked at."""
        if isinstance(error, ProviderError):
            error.conn_id = conn_id
        self._errors.append(error)
        self._failed.add(conn_id)

    def add_success(self, conn_id: str) -> None:
        """Note that a batch was looked at."""
        self._worked.add(conn_id)
        self._in_vain[conn_id] = 0

    def nobody_answers(self, conn_id: str) -> bool:
        """Say whether to try further batches would be to wait in vain for each of them, or was forbidden."""
        return self._in_vain[conn_id] >= _IN_VAIN

    def worked(self) -> list[str]:
        """Return the connections over which all went well."""
        return sorted(self._worked - self._failed)

    def first(self) -> Cannot | None:
        """Return the first fault."""
        return self._errors[0] if self._errors else None
