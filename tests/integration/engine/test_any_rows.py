"""Whatever result rows come, in whatever order, files and pieces: each request has one fate, and the same."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from airflow_batch_llm.core import judging, result_files
from airflow_batch_llm.core.endings import Ending
from airflow_batch_llm.core.files import iter_outcomes, iter_requests_as
from airflow_batch_llm.core.jsonl import iter_lines, read_chunks
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Batch, JobState, LetterState, Outcome
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.core.verdicts import STANDING, Verdict
from airflow_batch_llm.sinks import SqlSink
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.canned_provider import NOWHERE, CannedProvider
from tests.integration.engine.engine_results import came_to
from tests.integration.engine.result_rows import Arrangement, arranged, lines
from tests.integration.engine.test_judging_again import Matching
from tests.job_bench import QUICK, Bench
from tests.replay_provider import Replay, ReplayProvider

ROWS = 5
TEXTS = {f"row {n}": f"say {n}" for n in range(ROWS)}
JUDGES = {"any text": Judge(), "text 0 only": Judge(Matching("text 0"))}
CALM = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def one_ledger(tmp_path_factory: pytest.TempPathFactory) -> SqlLedger:
    return open_default_sqlite(tmp_path_factory.mktemp("ledger") / "ledger.db")


@pytest.fixture(scope="module")
def make(one_ledger: SqlLedger, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bench]:
    """Make jobs on one ledger, each with a provider of its own."""
    folder = tmp_path_factory.mktemp("workspace")

    def made(*script: Arrangement, **values: Any) -> Bench:
        provider = CannedProvider(script)
        values = {"texts": TEXTS, "settings": replace(QUICK, gone_after=0.0), **values}
        return Bench(
            server=NOWHERE,
            ledger=one_ledger,
            folder=folder,
            run_id=f"run-{secrets.token_hex(6)}",
            around_backend=provider.around,
            **values,
        )

    return made


# -- one batch -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Judged:
    """A batch that has ended, to be judged over and over from other files."""

    bench: Bench

    @property
    def batch(self) -> Batch:
        (batch,) = self.bench.batches()
        return batch

    @property
    def wire_ids(self) -> list[str]:
        tools = self.bench.tools()
        return [r.wire_id for r in iter_requests_as(_ids, tools.workspace, tools.root, self.batch)]

    def outcomes(self, arrangement: Arrangement, judge: Judge, piece: int) -> tuple[list[Outcome], Any]:
        """Judge the batch from these files, read in pieces of ``piece`` bytes."""
        bench = replace(self.bench, judge=judge)
        tools, job, batch = bench.tools(), bench.job(), self.batch
        files = []
        for number, (kind, data) in enumerate(arrangement(self.wire_ids)):
            path = f"any/{number}.jsonl"
            info = tools.workspace.put(f"{tools.root}/{path}", data)
            files.append({"kind": kind, "path": path, "bytes": info.size, "sha256": info.sha256})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(result_files, "read_chunks", partial(read_chunks, size=piece))
            ending = Ending(Verdict.MISSING, "missing", {})
            result, _ = judging.judge_batch(tools, job, batch, tools.template(job), files, ending)
        judged = replace(batch, outcomes_sha256=result.outcomes_sha256)
        return list(iter_outcomes(tools.workspace, tools.root, judged)), (result.counts, result.usage)


class _Ids(msgspec.Struct):
    wire_id: str


_ids = msgspec.json.Decoder(_Ids)


@pytest.fixture(scope="module")
def ended(make: Callable[..., Bench]) -> Judged:
    bench = make()
    bench.until(Until.ENDED, submitting=True)
    return Judged(bench)


@settings(CALM, max_examples=60)
@given(st.data(), st.sampled_from(sorted(JUDGES)), st.integers(1, 300), st.sampled_from([1, 7, 1 << 20]))
def test_each_request_has_one_outcome_and_the_order_of_rows_changes_nothing(
    ended: Judged, data: st.DataObject, judge: str, piece: int, other_piece: int
) -> None:
    of = data.draw(lines(ROWS))
    one, other = data.draw(arranged(of)), data.draw(arranged(of))
    found, sums = ended.outcomes(one, JUDGES[judge], piece)
    assert [outcome.custom_id for outcome in found] == list(TEXTS)
    assert ended.outcomes(other, JUDGES[judge], other_piece) == (found, sums)
    # What stands is the best that any of its rows says.
    tools = ended.bench.tools()
    said: dict[str, list[Verdict]] = {}
    for _, raw in one(ended.wire_ids):
        for _, line in iter_lines([raw]):
            row = tools.backend.decode(line)
            said.setdefault(row.wire_id, []).append(JUDGES[judge].check(row)[0])
    for outcome in found:
        verdicts = said.get(outcome.wire_id, [Verdict.MISSING])
        assert outcome.verdict is min(verdicts, key=STANDING.__getitem__)
        event("repeated" if len(verdicts) > 1 else "single")


@settings(CALM, max_examples=15)
@given(st.data())
def test_rows_given_twice_say_what_they_say_once(ended: Judged, data: st.DataObject) -> None:
    of = data.draw(lines(ROWS))
    once, twice = data.draw(arranged(of)), data.draw(arranged([*of, *of]))
    assert ended.outcomes(once, Judge(), 64) == ended.outcomes(twice, Judge(), 64)


# -- whole jobs ------------------------------------------------------------------------------------
def assert_each_row_has_one_fate(bench: Bench) -> None:
    answered = [a.custom_id for a in bench.answers()]
    dead = [x.custom_id for x in bench.letters(LetterState.OPEN)]
    assert sorted(answered + dead) == sorted(TEXTS)
    assert bench.job().counts["rows"] == len(TEXTS)
    assert bench.job().counts["answered"] == len(answered) and bench.job().counts["dead"] == len(dead)


POLICY = RowRetry(max_rounds=2, max_free_rounds=2, escalate_to="m-2")


@st.composite
def two_arrangements(draw: st.DrawFn) -> list[tuple[Arrangement, Arrangement]]:
    """What three batches in turn bring, each in two orders."""
    rounds = draw(st.lists(lines(ROWS), max_size=3))
    return [(draw(arranged(of)), draw(arranged(of))) for of in rounds]


@settings(CALM, max_examples=6)
@given(two_arrangements(), st.sampled_from(sorted(JUDGES)))
def test_a_job_accounts_for_each_row_and_comes_to_the_same_in_any_order(
    make: Callable[..., Bench], rounds: list[tuple[Arrangement, Arrangement]], judge: str
) -> None:
    found = []
    for script in zip(*rounds, strict=True) if rounds else [(), ()]:
        bench = make(*script, policy=POLICY, judge=JUDGES[judge])
        assert bench.run().state is JobState.SETTLED
        assert_each_row_has_one_fate(bench)
        found.append(came_to(bench))
    assert found[0] == found[1]


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f'{{"conn_type": "sqlite", "host": "{tmp_path}/ware.db"}}')
    return SqlSink("warehouse", "answers", key=["id"], create=True).resolve({})


@settings(CALM, max_examples=4)
@given(two_arrangements())
def test_landing_twice_is_landing_once(
    make: Callable[..., Bench],
    sink: Any,
    tmp_path: Path,
    rounds: list[tuple[Arrangement, Arrangement]],
) -> None:
    import sqlite3

    def landed(bench: Bench) -> list[Any]:
        with sqlite3.connect(tmp_path / "ware.db") as db:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchall()
            rows = db.execute(
                "SELECT * FROM answers WHERE _run_id = ? ORDER BY id", [bench.run_id]
            ).fetchall()
        db.close()
        return rows if made else []

    bench = make(*(one for one, _ in rounds), policy=POLICY, sink=sink)
    bench.run()
    once = (came_to(bench), landed(bench), results(bench))
    assert len(once[1]) == len(once[0][0])
    for again in (bench, bench.retry()):
        again.until(Until.SETTLED)
        assert (came_to(again), landed(again), results(again)) == once


def results(bench: Bench) -> list[bytes]:
    """The lines of the published files; the names of the parts are new each time."""
    return [path.read_bytes() for path in sorted((bench.root / "results").rglob("part-*.jsonl"))]


# -- over HTTP -------------------------------------------------------------------------------------
@pytest.fixture
def http() -> Iterator[Callable[..., ReplayProvider]]:
    made: list[ReplayProvider] = []

    def start(replay: Replay, piece: int) -> ReplayProvider:
        made.append(ReplayProvider(replay, piece=piece).__enter__())
        return made[-1]

    yield start
    for provider in made:
        provider.__exit__(None, None, None)


@settings(CALM, max_examples=4)
@given(st.data(), st.sampled_from([1, 3, 1000]))
def test_over_http_in_pieces_of_any_size_it_comes_to_what_it_comes_to_without(
    make: Callable[..., Bench], http: Callable[..., ReplayProvider], data: st.DataObject, piece: int
) -> None:
    # Of one kind each, as a batch of this protocol has one output and one error file.
    of = data.draw(lines(ROWS, most=8))
    drawn = data.draw(arranged(of))
    script = replace(drawn, files=tuple(file % 2 for file in drawn.files))
    inside = make(script, policy=POLICY)
    inside.run()
    names = {"output": "output_file_id", "error": "error_file_id"}
    written = script(list(TEXTS))
    replay = Replay(
        {"output_file_id": None, "error_file_id": None, **{names[kind]: kind for kind, _ in written}},
        dict(written),
        TEXTS,
    )
    outside = replace(make(policy=POLICY), server=http(replay, piece), around_backend=lambda backend: backend)
    outside.run()
    assert_each_row_has_one_fate(outside)
    assert came_to(outside) == came_to(inside)
