"""The ways out that docs/runbook.md names, read from the page itself."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

RUNBOOK = Path(__file__).resolve().parents[4] / "docs" / "runbook.md"

_SECTION = re.compile(r"^### (BLLM-\d{3})\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_WAYS = re.compile(r"^\*\*Ways out(?: of (?P<of>[^*]+))?\*\*\n\n(?P<items>(?:- .*\n|  .*\n)+)", re.MULTILINE)
_STEP = re.compile(r"`batch-llm (?P<command>[^`]+)`|clear `(?P<task>\w+)`(?P<downstream> with downstream)?")


@dataclass(frozen=True)
class Clear:
    """A task to clear in Airflow."""

    task: str
    downstream: bool


@dataclass(frozen=True)
class Way:
    """One line of a section: commands (as words) and clears, in order.

    :param red: the section's code, and which of its causes where the section tells several apart.
    :param pays_again: the line says so.
    """

    red: str
    number: int
    steps: tuple[list[str] | Clear, ...]
    pays_again: bool

    def __str__(self) -> str:
        return f"{self.red} {self.number}"


def sections() -> dict[str, str]:
    """Return code -> text of its section."""
    return {match[1]: match[2] for match in _SECTION.finditer(RUNBOOK.read_text())}


def ways() -> list[Way]:
    """Return every way out of every section."""
    found = []
    for code, text in sections().items():
        for group in _WAYS.finditer(text):
            red = f"{code} {group['of']}" if group["of"] else code
            items = re.split(r"^- ", group["items"], flags=re.MULTILINE)[1:]
            for number, item in enumerate(items, start=1):
                line = " ".join(item.split())
                # What stands after the last clear is an aside.
                found.append(Way(red, number, _steps(line), "*pays again*" in line))
    return found


def _steps(line: str) -> tuple[list[str] | Clear, ...]:
    steps: list[list[str] | Clear] = []
    for step in _STEP.finditer(line):
        if step["command"]:
            steps.append(shlex.split(step["command"]))
        else:
            steps.append(Clear(step["task"], bool(step["downstream"])))
    last = max(number for number, step in enumerate(steps, start=1) if isinstance(step, Clear))
    return tuple(steps[:last])


def told_to_be_red() -> set[str]:
    """Return the codes whose section says that a job halts or a run is red."""
    return {code for code, text in sections().items() if re.search(r"\bhalts\b|\bhalted\b|\bred\b", text)}
