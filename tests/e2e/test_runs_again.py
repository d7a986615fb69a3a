"""Runs that are made again: by backfills, beside each other, after they were deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.e2e.runs import FAILS_ONCE, FILTERED, PATIENCE, Jobs, Run, moment
from tests.e2e.together import at_once

NIGHTLY = "rows_by_night"
NIGHTS = [datetime(2026, 1, day, 2, tzinfo=UTC) for day in (5, 6, 7)]
DAY = timedelta(days=1)


def write_nights(jobs: Jobs) -> None:
    """Give the three nights their rows and every other night none."""
    folder = jobs.folder / "nights"
    folder.mkdir()
    for day in range(1, 32):
        (folder / f"2026-01-{day:02}.jsonl").touch()
    for night, bodies in zip(NIGHTS, (["North", "South"], ["East", FAILS_ONCE], ["West"]), strict=True):
        lines = [
            json.dumps({"id": f"{night:%F}/{number}", "body": body}) for number, body in enumerate(bodies)
        ]
        (folder / f"{night:%F}.jsonl").write_text("\n".join(lines))


class Nightly:
    """The runs of the three nights."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def start(self, night: datetime) -> Run:
        """Start a night's run by hand."""
        run_id = self._jobs.stack.client.trigger_run(NIGHTLY, interval=(night, night + DAY))
        return Run(self._jobs, NIGHTLY, run_id)

    def runs(self) -> dict[datetime, Run]:
        """Return the runs there are, by night."""
        found = self._jobs.stack.client.runs(NIGHTLY)
        by_night = {moment(run["logical_date"]): run["dag_run_id"] for run in found}
        return {night: Run(self._jobs, NIGHTLY, by_night[night]) for night in NIGHTS if night in by_night}

    def backfill(self, reprocess: str) -> None:
        """Backfill the three nights and wait until it has ended."""
        client = self._jobs.stack.client
        backfill = client.create_backfill(NIGHTLY, NIGHTS[0], NIGHTS[-1], reprocess=reprocess)
        client.wait_backfill(backfill, PATIENCE, on_look=self._release)

    def _release(self) -> None:
        for run in self.runs().values():
            run.release()

    def revisions(self) -> list[int]:
        """Return how often each night's rows were read."""
        return [run.revision() for run in self.runs().values()]

    def executed(self) -> list[list[int]]:
        """Return how often each row of each night was executed."""
        return [sorted(run.executed().values()) for run in self.runs().values()]


@at_once
def test_backfills_run_again_what_their_behaviour_says_and_pay_for_no_answer_twice(jobs: Jobs) -> None:
    write_nights(jobs)
    jobs.ready(NIGHTLY)
    nightly = Nightly(jobs)
    green, red = nightly.start(NIGHTS[0]), nightly.start(NIGHTS[1])
    assert [green.ends(), red.ends()] == ["success", "failed"]
    assert nightly.executed() == [[1, 1], [1, 1]]

    nightly.backfill("none")
    assert nightly.revisions() == [1, 1, 1], "only the night without a run is run"
    assert nightly.executed() == [[1, 1], [1, 1], [1]]

    nightly.backfill("failed")
    assert nightly.revisions() == [1, 2, 1]
    assert red.ends() == "success"
    assert nightly.executed() == [[1, 1], [1, 2], [1]], "the row that failed, and no other"

    nightly.backfill("completed")
    assert nightly.revisions() == [2, 3, 2]
    assert nightly.executed() == [[1, 1], [1, 2], [1]]
    for run, rows in zip(nightly.runs().values(), (2, 2, 1), strict=True):
        assert run.ends() == "success"
        assert len(run.landed()) == rows
        assert run.sent_after_answer() == 0


@at_once
def test_two_runs_over_the_same_rows_are_two_jobs_and_the_younger_ones_answers_stand(jobs: Jobs) -> None:
    older = jobs.start("rows_kept", ["North", "South"])
    older.waits()
    younger = Run(jobs, older.dag_id, f"{older.run_id}_younger")
    younger.create(rows_of=older)
    younger.waits()

    assert younger.ends() == "success"
    assert older.ends() == "success"
    assert younger.landed() == older.ids(0, 1), "although the older run landed later"
    assert older.landed() == []
    for run in (older, younger):
        assert len(run.batches()) == 1
        assert sorted(run.executed().values()) == [1, 1]
    assert not older.executed().keys() & younger.executed().keys()


@at_once
def test_a_run_deleted_and_made_anew_reads_its_source_again_and_keeps_answers(jobs: Jobs) -> None:
    run = jobs.start("rows_kept", ["North", "South", FAILS_ONCE, FILTERED])
    assert run.ends() == "success"
    assert run.letters() == {"open": 2}

    run.delete()
    key = run.ids(0, 1, 2, 3)
    run.write_rows({key[0]: "North", key[1]: "South, changed", key[2]: FAILS_ONCE, key[3]: FILTERED})
    run.create()
    assert run.ends() == "success"
    assert len(run.batches()) == 2
    # Once: North, both South, the filtered one. Twice: what had only used up its attempts.
    assert sorted(run.executed().values()) == [1, 1, 1, 1, 2]
    assert run.sent_after_answer() == 0
    assert run.letters() == {"resolved": 1, "open": 1}
    assert run.landed() == run.ids(0, 1, 2)


@at_once
def test_a_run_deleted_while_its_batch_goes_on_and_made_anew_waits_for_that_batch(jobs: Jobs) -> None:
    run = jobs.start("rows_kept", ["North", "South"])
    run.waits()
    run.mark_run("failed")  # Airflow deletes no run that is under way
    run.trigger_let_batches_go_on()
    assert run.is_over() == "failed"
    run.delete()
    run.create()
    run.waits()
    assert len(run.batches()) == 1
    assert run.ends() == "success"
    assert len(run.batches()) == 1
    assert run.cancel_calls() == 0
    assert sorted(run.executed().values()) == [1, 1]
    assert run.landed() == run.ids(0, 1)
