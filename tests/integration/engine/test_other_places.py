"""A connection that is given another server, or another account, in the middle of a job.

Where the provider shows a batch, all goes on, whatever the connection says by now. Where it does not, that
proves nothing: no row is lost by it, and none is paid for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.by_hand import Declined, abandon_doubt, abandon_running, adopt, cancel
from airflow_batch_llm.core.model import Batch, BatchState, Job, JobState, RemoteBatch, ResultFile
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.purge import delete_at_provider
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import ConfigurationError, NotFound
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.engine.server_since import ServerSince
from tests.integration.engine.test_moved_connections import Blind
from tests.job_bench import QUICK, Bench
from tests.local_server import LocalServer

CREATES = {"openai": "/v1/batches", "anthropic": "/anthropic/v1/messages/batches"}
LOST_REPLY = {"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]}
#: Batches wait before their first row.
STANDING = {"pace": {"seconds": 600, "hold_at": 0}}
DECIDED = {"actor": "ann", "reason": "moved"}


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, LocalServer]]:
    with (
        LocalServer(tmp_path_factory.mktemp("first-server")) as first,
        LocalServer(tmp_path_factory.mktemp("other-server"), api_key="other-key") as other,
    ):
        yield first, other


@pytest.fixture
def first(two_servers: tuple[LocalServer, LocalServer]) -> Iterator[ServerSince]:
    two_servers[0].set_scenario({})
    yield ServerSince(two_servers[0])
    two_servers[0].release()


@pytest.fixture
def other(two_servers: tuple[LocalServer, LocalServer]) -> Iterator[ServerSince]:
    two_servers[1].set_scenario({})
    yield ServerSince(two_servers[1])
    two_servers[1].release()


@pytest.fixture
def marked(first: ServerSince, tmp_path: Path) -> Bench:
    """A job over a protocol that shows marks and wants uploads."""
    texts = {f"t-{n}": f"ticket number {n}." for n in range(3)}
    return Bench(first, open_default_sqlite(tmp_path / "ledger.db"), tmp_path / "files", texts)


@pytest.fixture(params=["openai", "anthropic"])
def bench(request: pytest.FixtureRequest, marked: Bench) -> Bench:
    """The same, and a job over a protocol that has neither."""
    return replace(marked, provider=request.param)


# -- how a connection is changed -------------------------------------------------------------------
def other_server(bench: Bench, other: ServerSince) -> Bench:
    """The connection names another server."""
    return bench.retry(server=other)


def other_account(bench: Bench, other: ServerSince) -> Bench:
    """The connection has the key of another account of the same server, which knows none of our batches."""
    address = bench.backend(bench.server).address

    def at_the_same_address(backend: Any) -> Any:
        backend.address = address
        return backend

    return bench.retry(server=other, around_backend=at_the_same_address)


def other_key(bench: Bench) -> Bench:
    """The connection has a new key of the same account."""
    known = {"openai": "x-api-key", "anthropic": "x-goog-api-key"}[bench.provider]
    return bench.retry(api_key="rotated-key", options={"headers": {known: bench.server.api_key}})


class Written:
    """A server whose address is written in another way."""

    def __init__(self, server: ServerSince, write: Callable[[str], str]) -> None:
        self._server, self._write, self.api_key = server, write, server.api_key

    def url_of(self, protocol: str) -> str:
        return self._write(self._server.url_of(protocol))


MOVES = [other_server, other_account]
TOLD = {other_server: "its address was", other_account: "another key"}


# -- how far a job has come ------------------------------------------------------------------------
def in_doubt(bench: Bench) -> None:
    """The reply to the create call is lost, which took effect, and its lease is over."""
    bench.server.set_scenario(LOST_REPLY)
    with pytest.raises(KeyboardInterrupt):
        replace(bench, around_backend=Blind).step(Until.ENDED, submitting=True)
    bench.expire_leases()


def never_made(bench: Bench) -> None:
    """A process died right before its create call, and its lease is over."""
    _die(bench, "submit.before_create")
    bench.expire_leases()


def running(bench: Bench) -> None:
    bench.server.set_scenario(STANDING)
    bench.step(Until.ENDED, submitting=True)


def ended(bench: Bench) -> None:
    bench.until(Until.ENDED, submitting=True)


def _die(bench: Bench, where: str) -> None:
    def die(point: str) -> None:
        if point == where:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(bench, fault=die).step(Until.ENDED, submitting=True)


STANDS = [
    (in_doubt, BatchState.SUBMITTING),
    (running, BatchState.SUBMITTED),
    (ended, BatchState.ENDED),
]


# -- what can be seen ------------------------------------------------------------------------------
def creates(bench: Bench, server: ServerSince) -> int:
    return len(server.requests("POST", CREATES[bench.provider]))


def only(bench: Bench) -> Batch:
    (batch,) = bench.batches()
    return batch


def assert_done_once(bench: Bench, *servers: ServerSince) -> None:
    """Every row is answered, and was paid for once."""
    assert len(bench.answers()) == len(bench.texts)
    assert sum(server.summary()["executed"] for server in servers) == len(bench.texts)


def decide(bench: Bench, act: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
    """What a command does with the job's only batch."""

    async def run(engine: Any) -> Any:
        return await act(engine.tools, bench.job(), only(bench), *arguments, **DECIDED, **values)

    return bench.call(run)


# -- seeing is believing, not seeing is not --------------------------------------------------------
@pytest.mark.parametrize(("come", "state"), STANDS)
def test_a_batch_that_is_not_shown_there_is_neither_sent_again_nor_lost_nor_gone(
    come: Callable[[Bench], None], state: BatchState, bench: Bench, other: ServerSince
) -> None:
    bench = replace(bench, settings=replace(QUICK, gone_after=0))
    come(bench)
    for move in (*MOVES, *MOVES):
        with pytest.raises(ConfigurationError, match=f"'llm'.*{only(bench).batch_id}.*{TOLD[move]}"):
            move(bench, other).until(Until.SETTLED)
    assert only(bench).state is state and bench.job().state is JobState.RUNNING
    assert creates(bench, other) == 0
    bench.server.set_scenario({})
    bench.server.release()
    assert bench.retry().settle().counts["answered"] == 3
    assert_done_once(bench, bench.server, other)


@pytest.mark.parametrize("come", [in_doubt, running, ended])
def test_a_new_key_of_the_same_account_stops_nothing(come: Callable[[Bench], None], bench: Bench) -> None:
    come(bench)
    found, before = come is not in_doubt, only(bench).place
    bench.server.set_scenario({})
    bench.server.release()
    rotated = other_key(bench)
    assert rotated.settle().counts["answered"] == 3
    assert_done_once(bench, bench.server)
    assert (only(bench).place == before) is found, "where it was looked for and found is noted"


@pytest.mark.parametrize("come", [in_doubt, running, ended])
def test_a_new_name_of_the_same_server_stops_nothing(come: Callable[[Bench], None], marked: Bench) -> None:
    come(marked)
    marked.server.set_scenario({})
    marked.server.release()

    class Named:
        url_of = staticmethod(
            lambda protocol: marked.server.url_of(protocol).replace("127.0.0.1", "localhost")
        )
        api_key = marked.server.api_key

    assert marked.retry(server=Named()).until(Until.SETTLED).counts["answered"] == 3
    assert_done_once(marked, marked.server)


def test_an_address_that_is_written_otherwise_is_the_same(marked: Bench) -> None:
    """What is not there may then be concluded to be so, and is sent again."""
    never_made(marked)
    written = marked.retry(server=Written(marked.server, lambda url: f" {url.replace('http:', 'HTTP:')}// "))
    while only(marked).state is BatchState.SUBMITTING:
        written.wait(written.step(Until.ENDED))
    assert written.until(Until.SETTLED).counts["answered"] == 3
    assert_done_once(marked, marked.server)


def test_a_key_that_is_given_back_lets_what_was_never_made_be_sent_again(
    marked: Bench, other: ServerSince
) -> None:
    never_made(marked)
    with pytest.raises(ConfigurationError):
        other_account(marked, other).until(Until.SETTLED)
    assert marked.retry().settle().counts["answered"] == 3
    assert_done_once(marked, marked.server, other)


@pytest.mark.parametrize("kind", ["output", "error"])
def test_a_result_file_that_another_key_does_not_show_is_not_gone(kind: str, marked: Bench) -> None:
    marked = replace(marked, settings=replace(QUICK, gone_after=0), policy=RowRetry(max_rounds=0))
    rows = [{"match": {"contains": "number 1."}, "fault": "bad_request"}]
    marked.server.set_scenario({"rows": rows})
    ended(marked)

    class Narrow:
        """The key sees batches, and not this file."""

        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)

        async def download(self, batch: RemoteBatch, file: ResultFile, local: Path) -> None:
            if file.kind == kind:
                raise NotFound("the provider knows no such id")
            await self._backend.download(batch, file, local)

    narrow = replace(other_key(marked), around_backend=Narrow)
    with pytest.raises(ConfigurationError, match="another key"):
        narrow.until(Until.SETTLED)
    assert only(marked).state is BatchState.ENDED
    with pytest.raises(Declined, match="--yes-pay-again"):
        decide(narrow, abandon_running, pay_again=False)
    done = marked.retry().settle()
    assert (done.counts["answered"], done.counts["dead"]) == (2, 1)


# -- what was not sent yet -------------------------------------------------------------------------
@pytest.mark.parametrize("move", MOVES)
def test_an_upload_is_not_named_to_a_server_or_account_that_has_it_not(
    move: Any, marked: Bench, other: ServerSince
) -> None:
    _die(marked, "submit.before_intent")
    assert only(marked).state is BatchState.UPLOADED
    moved = move(marked, other)
    assert moved.settle().counts["answered"] == 3
    statuses = {call["status"] for call in other.requests("POST", CREATES[marked.provider])}
    assert statuses == {200} and creates(marked, other) == 1 and creates(marked, marked.server) == 0
    assert_done_once(moved, marked.server, other)


# -- strangers, and ids that two servers gave ------------------------------------------------------
def test_a_strangers_batch_of_the_other_account_is_not_adopted(
    first: ServerSince, other: ServerSince, tmp_path: Path
) -> None:
    """It shows no marks, runs, and has as many rows."""
    texts = {f"t-{n}": f"ticket number {n}." for n in range(3)}
    ours = Bench(first, open_default_sqlite(tmp_path / "ours.db"), tmp_path / "ours", texts)
    ours = replace(ours, provider="anthropic")
    never_made(ours)
    theirs = Bench(other, open_default_sqlite(tmp_path / "theirs.db"), tmp_path / "theirs", texts)
    running(replace(theirs, provider="anthropic"))
    for move in MOVES:
        with pytest.raises(ConfigurationError, match=TOLD[move]):
            move(ours, other).until(Until.ENDED)
    assert only(ours).provider_batch_id is None and not only(ours).provisional


class Misled:
    """A backend of another server that has a batch with this id, too: somebody else's."""

    def __init__(self, backend: Any, theirs: str) -> None:
        self._backend, self._theirs = backend, theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def retrieve(self, batch_id: str) -> Any:
        return replace(await self._backend.retrieve(self._theirs), id=batch_id)


@pytest.mark.parametrize("come", [running, ended])
def test_the_same_id_at_another_server_is_not_taken_for_it(
    come: Callable[[Bench], None], first: ServerSince, other: ServerSince, tmp_path: Path
) -> None:
    bench = Bench(first, open_default_sqlite(tmp_path / "ledger.db"), tmp_path / "files", {"t-1": "hello."})
    come(bench)
    theirs = other.make_batch(["row-1"], {"owner": "somebody else"})
    moved = bench.retry(server=other, around_backend=lambda backend: Misled(backend, theirs))
    with pytest.raises(ConfigurationError, match="its address was"):
        moved.until(Until.SETTLED)
    assert only(bench).state in (BatchState.SUBMITTED, BatchState.ENDED)


# -- the ways out ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("come", "state"), STANDS)
def test_what_a_person_abandons_is_sent_with_what_the_connection_says_now(
    come: Callable[[Bench], None], state: BatchState, bench: Bench, other: ServerSince
) -> None:
    come(bench)
    moved = other_account(bench, other)
    abandon = abandon_doubt if state is BatchState.SUBMITTING else abandon_running
    with pytest.raises(Declined, match="--yes-pay-again"):
        decide(moved, abandon, pay_again=False)
    assert only(bench).state is state
    decide(moved, abandon, pay_again=True)
    assert moved.settle().counts["answered"] == 3
    assert creates(bench, other) == 1


@pytest.mark.parametrize(("come", "state"), STANDS)
def test_a_batch_that_has_another_id_behind_the_new_address_can_be_adopted(
    come: Callable[[Bench], None], state: BatchState, first: ServerSince, other: ServerSince, tmp_path: Path
) -> None:
    """A gateway was put before the server, say, which gives out ids of its own."""
    bench = Bench(first, open_default_sqlite(tmp_path / "ledger.db"), tmp_path / "files", {"t-1": "hello."})
    come(bench)
    first.set_scenario({})
    first.release()
    known_as = first.batches()[-1]["id"]

    class Gateway(Misled):
        async def retrieve(self, batch_id: str) -> Any:
            if batch_id != "gw-1":
                return await self._backend.retrieve("batch_unknown")
            return replace(await self._backend.retrieve(known_as), id="gw-1")

        async def find(self, token: str, **values: Any) -> list[Any]:
            return []

    named = Written(first, lambda url: url.replace("127.0.0.1", "localhost"))
    moved = bench.retry(server=named, around_backend=lambda backend: Gateway(backend, known_as))
    with pytest.raises(ConfigurationError):
        moved.until(Until.SETTLED)
    decide(moved, adopt, "gw-1")
    assert moved.until(Until.SETTLED).counts["answered"] == 1
    assert first.summary()["executed"] == 1


def test_no_batch_is_adopted_in_place_of_one_that_its_own_place_has(marked: Bench) -> None:
    running(marked)
    with pytest.raises(Declined, match="only one in doubt or lost"):
        decide(marked, adopt, "batch_other")


def test_a_cancel_that_does_not_reach_a_batch_says_why(marked: Bench, other: ServerSince) -> None:
    running(marked)

    async def stop(engine: Any) -> Any:
        return await cancel(lambda conn_id: engine.tools, marked.ledger, marked.job(), **DECIDED)

    assert other_account(marked, other).call(stop).failed == {only(marked).batch_id: "BLLM-001"}
    assert marked.call(stop).asked == [only(marked).batch_id]


# -- a purge ---------------------------------------------------------------------------------------
def _purge(bench: Bench) -> tuple[int, dict[str, str]]:
    async def purge(engine: Any) -> Any:
        return await delete_at_provider(bench.batches(), lambda conn_id: engine.tools.backend)

    found: tuple[int, dict[str, str]] = bench.call(purge)
    return found


def test_a_purge_does_not_take_another_places_word_for_it(bench: Bench, other: ServerSince) -> None:
    bench.settle()
    for move in MOVES:
        deleted, failed = _purge(move(bench, other))
        assert deleted == 0 and set(failed.values()) == {"BLLM-001"}
    deleted, failed = _purge(other_key(bench))
    assert deleted > 0 and failed == {}


# -- older ledgers ---------------------------------------------------------------------------------
def test_a_batch_of_an_older_ledger_is_looked_for_as_before(marked: Bench, other: ServerSince) -> None:
    never_made(marked)
    with marked.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_batch SET address = NULL, account = NULL")
    moved = other_server(marked, other)
    while only(marked).state is BatchState.SUBMITTING:
        moved.wait(moved.step(Until.ENDED))
    job: Job = moved.until(Until.SETTLED)
    assert job.counts["answered"] == 3
