"""What can be wrong with one row, as opposed to the prompt."""

from __future__ import annotations

from airflow_batch_llm.exceptions import PromptError


class UnrenderableRow(PromptError):
    """One row's values cannot go through the prompt or onto the wire. Only that row is at fault.

    ``fault`` is its short code: ``unencodable_text``, ``prompt_failed``, ``history_shape``, ``body_shape``,
    or one of an image (``image_…``).
    """

    def __init__(self, message: str, *, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class RowFault(Exception):
    """Raised while a row is rendered, before its label is known to the one who raises.

    :param says: what is wrong, without values of the row.
    """

    def __init__(self, fault: str, says: str) -> None:
        super().__init__(says)
        self.fault = fault
        self.says = says
