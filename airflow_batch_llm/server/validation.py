"""Checks a batch's input file, line by line, before anything runs. Only the first fault is reported."""

from __future__ import annotations

from pathlib import Path

from airflow_batch_llm.server.settings import ServerLimits
from airflow_batch_llm.server.wire import LineChecker, LineError


def check_file(path: Path, checker: LineChecker, limits: ServerLimits) -> tuple[int, LineError | None]:
    """Return the number of lines and the first fault, if any.

    A byte order mark and an empty line are ``invalid_json_line``, as is a line above the limit.
    """
    number = 0
    with path.open("rb") as file:
        while line := file.readline(limits.max_line_bytes + 1):
            number += 1
            if len(line) > limits.max_line_bytes:
                return number, LineError("invalid_json_line", "This line is too long.", line=number)
            if number > limits.max_requests:
                return number, LineError("too_many_tasks", "The file holds too many requests.", "file_id")
            fault = checker.check(number, line.removesuffix(b"\n"))
            if fault is not None:
                return number, fault
    if not number:
        return 0, LineError("empty_file", "The file holds no request.", "file_id")
    return number, None
