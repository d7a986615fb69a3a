"""The scenario in force, its counters, and the choice of a fault for a row, a batch or a call."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable
from functools import lru_cache

from airflow_batch_llm.server.database import Database
from airflow_batch_llm.server.scenario import (
    BatchRule,
    CallRule,
    Match,
    RowRule,
    Scenario,
    dump_scenario,
    parse_scenario,
)

_POLLS = ("retrieve", "list")
_SCALE = float(1 << 64)


class ScenarioStore:
    """Scenarios by generation (one more with each put), and counters of the rules that have ``times``."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._read = lru_cache(maxsize=8)(self._load)

    def current(self) -> tuple[int, Scenario]:
        """Return the generation and the scenario in force (generation 0: none was ever put)."""
        row = self._db.connection().execute("SELECT max(generation) AS g FROM scenario").fetchone()
        generation = row["g"] or 0
        return generation, self.get(generation)

    def get(self, generation: int) -> Scenario:
        """Return the scenario of a generation."""
        return self._read(generation)

    def put(self, scenario: Scenario) -> int:
        """Put a scenario in force, with fresh counters, and return its generation."""
        with self._db.write() as connection:
            cursor = connection.execute(
                "INSERT INTO scenario (document) VALUES (?)", (dump_scenario(scenario),)
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def draw_call(self, on: str) -> CallRule | None:
        """Count a call and return the rule that spoils it, if any."""
        generation, scenario = self.current()
        for index, rule in enumerate(scenario.calls):
            if rule.on != on and not (rule.on == "poll" and on in _POLLS):
                continue
            if rule.times is None and not rule.skip:
                return rule
            seen = self._count(generation, f"call/{index}")
            if seen >= rule.skip and (rule.times is None or seen < rule.skip + rule.times):
                return rule
        return None

    def draw_batch(self, connection: sqlite3.Connection, generation: int) -> BatchRule | None:
        """Return the rule for a batch being created, counted in the caller's transaction."""
        for index, rule in enumerate(self.get(generation).batches):
            if rule.times is None or count(connection, generation, f"batch/{index}") < rule.times:
                return rule
        return None

    def draw_refusal(self, refuses: Callable[[BatchRule], bool]) -> BatchRule | None:
        """Return the batch rule whose turn it is, counted, if a call is refused for it.

        One that is not is left to the batch that will be created.
        """
        generation, scenario = self.current()
        if not scenario.batches:
            return None
        with self._db.write() as connection:
            for index, rule in enumerate(scenario.batches):
                name = f"batch/{index}"
                if rule.times is not None and counted(connection, generation, name) >= rule.times:
                    continue
                if not refuses(rule):
                    return None
                count(connection, generation, name)
                return rule
        return None

    def is_ready(self, file_id: str, *, look: bool) -> bool:
        """Say whether an upload can be used, after the looks that ``files_ready_after`` asks for.

        :param look: whether this is one of them.
        """
        generation, scenario = self.current()
        if not scenario.files_ready_after:
            return True
        name = f"file/{file_id}"
        if look:
            return self._count(generation, name) >= scenario.files_ready_after
        return counted(self._db.connection(), generation, name) >= scenario.files_ready_after

    def _count(self, generation: int, name: str) -> int:
        with self._db.write() as connection:
            return count(connection, generation, name)

    def _load(self, generation: int) -> Scenario:
        row = (
            self._db.connection()
            .execute("SELECT document FROM scenario WHERE generation = ?", (generation,))
            .fetchone()
        )
        return parse_scenario(row["document"]) if row else Scenario()


def count(connection: sqlite3.Connection, generation: int, name: str) -> int:
    """Add one to a counter and return what it was before."""
    row = connection.execute(
        "INSERT INTO counter VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n",
        (generation, name),
    ).fetchone()
    return int(row["n"]) - 1


def counted(connection: sqlite3.Connection, generation: int, name: str) -> int:
    """Return a counter."""
    row = connection.execute(
        "SELECT n FROM counter WHERE generation = ? AND name = ?", (generation, name)
    ).fetchone()
    return int(row["n"]) if row else 0


class RowFaults:
    """Chooses the fault of each row of one batch. Nothing is counted until :meth:`save`."""

    def __init__(self, connection: sqlite3.Connection, generation: int, scenario: Scenario) -> None:
        self._connection = connection
        self._generation = generation
        self._rules = [(index, rule, _matcher(rule.match)) for index, rule in enumerate(scenario.rows)]
        self._used: list[tuple[int, str]] = []

    def choose(self, line: int, custom_id: str, model: str, prompt: Callable[[], str]) -> RowRule | None:
        """Return the rule for a row, if any. ``prompt`` is asked only where a rule needs it."""
        for index, rule, fits in self._rules:
            if not fits(line, custom_id, model, prompt):
                continue
            if rule.times is None:
                return rule
            if self._executions(index, custom_id) < rule.times:
                self._used.append((index, custom_id))
                return rule
        return None

    def save(self, connection: sqlite3.Connection) -> None:
        """Count the faults chosen since the last call, in the transaction that logs the rows."""
        if self._used:
            save_uses(connection, self._generation, self._used)
            self._used = []

    def _executions(self, index: int, custom_id: str) -> int:
        row = self._connection.execute(
            "SELECT n FROM row_counter WHERE generation = ? AND rule = ? AND custom_id = ?",
            (self._generation, index, custom_id),
        ).fetchone()
        return row["n"] if row else 0


def save_uses(connection: sqlite3.Connection, generation: int, used: Iterable[tuple[int, str]]) -> None:
    """Add one to the counter of each (rule, custom_id)."""
    connection.executemany(
        "INSERT INTO row_counter VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1",
        ((generation, index, custom_id) for index, custom_id in used),
    )


_Fits = Callable[[int, str, str, Callable[[], str]], bool]


def _matcher(match: Match) -> _Fits:
    pattern = re.compile(match.custom_id) if match.custom_id is not None else None

    def fits(line: int, custom_id: str, model: str, prompt: Callable[[], str]) -> bool:
        if match.every is not None and line % match.every:
            return False
        if match.model is not None and model != match.model:
            return False
        if pattern is not None and not pattern.search(custom_id):
            return False
        if match.fraction is not None:
            text = custom_id if match.by == "custom_id" else prompt()
            if share(match.salt, text) >= match.fraction:
                return False
        return match.contains is None or match.contains in prompt()

    return fits


def share(salt: str, text: str) -> float:
    """Return a number in [0, 1) that depends on salt and text alone."""
    digest = hashlib.blake2b(f"{salt}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _SCALE
