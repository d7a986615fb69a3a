"""What cannot be done with single batches of a job, told when the others were looked at."""

from __future__ import annotations

from airflow_batch_llm.exceptions import ConfigurationError, ProviderError, Unreachable

#: Why something of a batch cannot be done with its connection.
Cannot = ProviderError | ConfigurationError
#: So many batches of a connection that do not get through, and none that does, mean that nobody answers.
_IN_VAIN = 3


class Failures:
    """One batch must not keep the others from being looked at and read: its fault is raised after them."""

    def __init__(self) -> None:
        self._errors: dict[str, list[Cannot]] = {}
        self._worked: set[str] = set()

    def add(self, conn_id: str, error: Cannot) -> None:
        """Note why something cannot be done with a batch of a connection."""
        self._errors.setdefault(conn_id, []).append(error)

    def add_success(self, conn_id: str) -> None:
        """Note that somebody answered."""
        self._worked.add(conn_id)

    def nobody_answers(self, conn_id: str) -> bool:
        """Say whether to try further batches would be to wait in vain for each of them."""
        silent = sum(isinstance(error, Unreachable) for error in self._errors.get(conn_id, []))
        return silent >= _IN_VAIN and conn_id not in self._worked

    def worked(self) -> list[str]:
        """Return the connections over which all went well."""
        return sorted(self._worked - self._errors.keys())

    def first(self) -> Cannot | None:
        """Return the first fault."""
        return next((error for errors in self._errors.values() for error in errors), None)
