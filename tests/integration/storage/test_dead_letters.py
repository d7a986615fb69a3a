from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import select

from airflow_batch_llm.core.model import DeadLetter, LetterState, Usage
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.storage.engine import reading
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.schema import dead_letter
from tests.integration.storage.ledgers import actions, letter, running_job

OPEN, REDRIVING, RESOLVED, DISCARDED = LetterState

# The drivers count and return the rows of a bulk insert in different ways.
pytestmark = pytest.mark.parametrize("address", ["sqlite", "postgresql", "psycopg2", "mysql"], indirect=True)


ODD_IDS = [
    "row",
    "Row",
    "ROW",
    "row ",
    " row",
    "row\t",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "ß",
    "ss",
    "nul\x00",
    "nul",
    '"nul\\u0000"',
    "\x00",
    "line\nbreak\r\n",
    "\u2028",
    "'; DROP TABLE x; --",
    "%s %(a)s :a {}",
    "x" * 100_000,
    "🙂",
    "\\x41",
]


def test_custom_ids_are_kept_byte_for_byte(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    letters = [letter(job, f"w{n:02}", id_) for n, id_ in enumerate(ODD_IDS)]
    assert ledger.insert_dead_letters(letters) == len(ODD_IDS)
    found = list(ledger.dead_letters(job.job_id))
    assert [x.custom_id for x in found] == ODD_IDS
    assert [x.custom_id.encode() for x in found] == [id_.encode() for id_ in ODD_IDS]


def test_a_letter_is_read_back_as_it_was_given(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    given = letter(job, "w", attempts=3, usage=Usage(2**40, 2, 3, 4, 5), exhausted=False, reason="first")
    ledger.insert_dead_letters([given])
    (found,) = ledger.dead_letters(job.job_id)
    assert abs(found.created_at - ledger.now()) < 60
    assert replace(found, created_at=0.0, updated_at=0.0) == given


def test_free_text_is_made_storable(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w", message="nul \x00 half \ud83d end")])
    (found,) = ledger.dead_letters(job.job_id)
    assert found.message == "nul � half ? end"


def test_wire_ids_that_differ_in_case_are_two_letters_in_byte_order(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    wires = ["-a", "A_", "Aa", "_a", "aA", "aa", "b-", "b_"]
    assert ledger.insert_dead_letters([letter(job, wire) for wire in reversed(wires)]) == len(wires)
    assert [x.wire_id for x in ledger.dead_letters(job.job_id)] == sorted(wires)


def test_a_letter_that_is_there_is_never_reset(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w", attempts=2)])
    ledger.move_dead_letters(job.job_id, ["w"], to=DISCARDED, expect=[OPEN], actor="ann", reason="known")
    assert ledger.insert_dead_letters([letter(job, "w", attempts=2, code="other"), letter(job, "v")]) == 1
    by_wire = {x.wire_id: x for x in ledger.dead_letters(job.job_id)}
    assert (by_wire["w"].state, by_wire["w"].code, by_wire["w"].actor) == (DISCARDED, "server_error", "ann")


def test_more_attempts_bring_a_letter_up_to_date_and_leave_its_state(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w", attempts=1)])
    ledger.move_dead_letters(job.job_id, ["w"], to=REDRIVING, expect=[OPEN], actor="ann", reason="fixed")
    news = letter(
        job,
        "w",
        attempts=2,
        verdict=Verdict.REFUSED,
        code="refused",
        message="no",
        exhausted=False,
        model="m-2",
    )
    fewer = letter(job, "w", attempts=1, code="old")
    assert ledger.insert_dead_letters([fewer, news, fewer]) == 0
    (found,) = ledger.dead_letters(job.job_id)
    assert (found.state, found.actor, found.reason) == (REDRIVING, "ann", "fixed")
    assert (found.verdict, found.code, found.message) == (Verdict.REFUSED, "refused", "no")
    assert (found.attempts, found.usage, found.exhausted, found.model) == (
        news.attempts,
        news.usage,
        False,
        "m-2",
    )
    assert actions(ledger, job.job_id)[-1] == "letters_updated"
    before = actions(ledger, job.job_id)
    ledger.insert_dead_letters([news])
    assert actions(ledger, job.job_id) == before


def test_the_same_letter_twice_in_one_call_is_one(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    assert ledger.insert_dead_letters([letter(job, "w", attempts=2), letter(job, "w", attempts=1)]) == 1
    (found,) = ledger.dead_letters(job.job_id)
    assert len(found.attempts) == 2


def test_a_letter_moves_only_from_a_state_that_is_expected(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters(letter(job, w) for w in "abc")

    def move(ids: str, to: LetterState, *expect: LetterState) -> int:
        return ledger.move_dead_letters(job.job_id, ids, to=to, expect=expect, actor="ann", reason="why")

    assert move("ab", REDRIVING, OPEN) == 2
    assert move("abc", RESOLVED, REDRIVING) == 2
    assert move("abc", DISCARDED, OPEN, REDRIVING) == 1
    assert move("abc", DISCARDED, OPEN, RESOLVED, DISCARDED) == 2
    assert move("abcx", DISCARDED, OPEN, DISCARDED) == 0
    assert move("abc", OPEN) == 0
    assert move("", OPEN, DISCARDED) == 0
    assert ledger.count_dead_letters(job.job_id) == {(DISCARDED, "server_error"): 3}
    reasons = [e.reason for e in ledger.events(job.job_id) if e.action == "letters_moved"]
    assert reasons == [
        "2 open -> redriving: why",
        "2 redriving -> resolved: why",
        "1 open -> discarded: why",
        "2 resolved -> discarded: why",
    ]


def test_each_change_of_a_letter_is_kept_with_who_and_why(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters([letter(job, "w")])
    ledger.move_dead_letters(job.job_id, ["w"], to=REDRIVING, expect=[OPEN], actor="ann", reason='a "q"\n%')
    ledger.move_dead_letters(job.job_id, ["w"], to=OPEN, expect=[REDRIVING], actor="machine", reason="")
    with reading(ledger.engine) as connection:
        text = connection.execute(select(dead_letter.c.changes)).scalar_one()
    first, second = (json.loads(line) for line in text.splitlines())
    assert (first["from"], first["to"], first["actor"], first["reason"]) == (
        "open",
        "redriving",
        "ann",
        'a "q"\n%',
    )
    assert (second["from"], second["to"], second["actor"]) == ("redriving", "open", "machine")
    assert first["time"] <= second["time"]


def test_letters_are_filtered_by_state_and_counted_by_code(ledger: SqlLedger) -> None:
    job, other = running_job(ledger), running_job(ledger, "other")
    ledger.insert_dead_letters([letter(job, "a"), letter(job, "b", code="x"), letter(other, "a", code="y")])
    ledger.move_dead_letters(job.job_id, ["a"], to=RESOLVED, expect=[OPEN], actor="m", reason="r")
    assert [x.wire_id for x in ledger.dead_letters(job.job_id, states=[OPEN])] == ["b"]
    assert [x.wire_id for x in ledger.dead_letters(job.job_id, states=[OPEN, RESOLVED])] == ["a", "b"]
    assert ledger.count_dead_letters(job.job_id) == {(RESOLVED, "server_error"): 1, (OPEN, "x"): 1}
    assert ledger.count_dead_letters(other.job_id) == {(OPEN, "y"): 1}
    assert list(ledger.dead_letters("none")) == []


def test_many_letters_stream_in_and_out(ledger: SqlLedger) -> None:
    job = running_job(ledger)
    total = 100_000 if ledger.engine.dialect.name == "sqlite" else 20_000
    numbers = list(range(total))
    random.Random(1).shuffle(numbers)
    written_meanwhile: dict[int, int] = {}

    def stream() -> Iterator[DeadLetter]:
        for count, number in enumerate(numbers):
            if count in (total // 2, total - 1):
                written_meanwhile[count] = sum(ledger.count_dead_letters(job.job_id).values())
            yield letter(job, f"w{number:06}")

    assert ledger.insert_dead_letters(stream()) == total
    assert written_meanwhile == {total // 2: total // 2, total - 1: total - 1000}
    assert ledger.insert_dead_letters(letter(job, f"w{n:06}") for n in range(0, total, 50)) == 0

    reader = ledger.dead_letters(job.job_id)
    first = next(reader)
    ledger.add_event(job.job_id, "written_while_reading")
    wires = [first.wire_id, *(x.wire_id for x in reader)]
    assert wires == [f"w{n:06}" for n in range(total)]
