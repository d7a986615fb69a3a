"""Waiting: patient with the provider, quiet on the wire, and never writing."""

from __future__ import annotations

import pytest

from airflow_batch_llm.triggers.poller import AUTH_TRIES, ODD_TRIES
from tests.unit.backends.scripted_server import Reply, ScriptedServer
from tests.unit.triggers.conftest import START, Waiting, page, shown

REFUSED = Reply(401, {"error": {"message": "bad key", "code": "invalid_api_key"}})


def only_looked(server: ScriptedServer) -> bool:
    return {request.method for request in server.received} <= {"GET"}


# -- rough polling ---------------------------------------------------------------------------------
def test_case_d14_rough_polling_ends_in_one_event(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [
        Reply(503, b"busy"),
        Reply(hang=True),
        Reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "120"}),
        shown("queued"),
        shown("in_progress"),
        shown("completed"),
    ]
    assert waiting.run("b1") == {"version": 1, "status": "ended", "ended": 1}
    assert len(server.received) == 6 and only_looked(server)
    assert waiting.pauses[2] >= 120
    assert max(pause for n, pause in enumerate(waiting.pauses) if n != 2) < 120


def test_case_d14_the_same_with_the_retries_inside_of_a_look(server: ScriptedServer) -> None:
    server.script = [
        Reply(503, b"busy"),
        Reply(drop=True),
        Reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "120"}),
        shown("completed"),
    ]
    waiting = Waiting(server, retries=2)
    assert waiting.run("b1")["status"] == "ended"
    assert waiting.pauses == [pytest.approx(120, rel=0.01)]


def test_case_d14_b_a_wrong_key_ends_the_wait_after_a_few_looks(
    waiting: Waiting, server: ScriptedServer
) -> None:
    server.routes["GET /v1/batches/b1"] = REFUSED
    event = waiting.run("b1", interval_max=60.0)
    assert (event["status"], event["code"], event["ended"]) == ("auth", "BLLM-020", 0)
    assert len(server.received) == AUTH_TRIES == waiting.opened
    assert only_looked(server)
    assert waiting.now - START < 600, "not after a day"


def test_a_key_that_was_changed_meanwhile_is_read_again(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [REFUSED, shown("in_progress"), REFUSED, REFUSED, REFUSED, shown("completed")]
    assert waiting.run("b1")["status"] == "ended"
    assert waiting.opened == 5


def test_an_outage_of_hours_is_no_reason_to_give_up(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [Reply(503, b"down") for _ in range(40)] + [shown("completed")]
    assert waiting.run("b1")["status"] == "ended"
    assert waiting.now - START > 2 * 3600


def test_an_unusable_connection_ends_the_wait_with_its_code(server: ScriptedServer) -> None:
    from airflow_batch_llm.exceptions import ConfigurationError

    class Unusable(Waiting):
        async def _open(self):  # type: ignore[no-untyped-def]
            self.opened += 1
            raise ConfigurationError("no such connection")

    waiting = Unusable(server)
    event = waiting.run("b1")
    assert (event["status"], event["code"]) == ("error", "BLLM-001")
    assert waiting.opened == ODD_TRIES


def test_a_batch_that_the_provider_denies_is_for_the_engine(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [Reply(404, {"error": {"message": "no such batch"}})]
    assert waiting.run("b1")["status"] == "gone"


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_every_terminal_state_is_an_end(waiting: Waiting, server: ScriptedServer, status: str) -> None:
    server.script = [shown(status)]
    assert waiting.run("b1") == {"version": 1, "status": "ended", "ended": 1}
    assert waiting.pauses == []


@pytest.mark.parametrize(
    "status", ["validating", "in_progress", "finalizing", "cancelling", "never heard of"]
)
def test_every_other_state_is_still_running(waiting: Waiting, server: ScriptedServer, status: str) -> None:
    server.script = [shown(status), shown("completed")]
    assert waiting.run("b1")["status"] == "ended"
    assert len(waiting.pauses) == 1


# -- when to look ----------------------------------------------------------------------------------
def test_the_first_look_is_not_before_its_time(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [shown("completed")]
    waiting.run("b1", first_look_at=START + 10)
    assert waiting.looks == [10]


def test_pauses_grow_to_the_longest_and_are_not_all_alike(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [shown("in_progress") for _ in range(25)] + [shown("completed")]
    waiting.run("b1", interval_min=10.0, interval_max=100.0)
    assert 8 <= waiting.pauses[0] <= 12
    late = waiting.pauses[15:]
    assert all(80 <= pause <= 120 for pause in late)
    assert len(set(late)) > 5


def test_not_before_ends_the_wait_on_time(waiting: Waiting, server: ScriptedServer) -> None:
    server.routes["GET /v1/batches/b1"] = shown("in_progress")
    event = waiting.run("b1", not_before=START + 100, more_planned=True)
    assert event == {"version": 1, "status": "due", "ended": 0}
    assert waiting.now == START + 100


def test_without_batches_nothing_is_asked(waiting: Waiting, server: ScriptedServer) -> None:
    assert waiting.run(not_before=START + 30)["status"] == "due"
    assert waiting.now == START + 30
    assert server.received == [] and waiting.opened == 0
    assert waiting.run()["status"] == "due"


def test_the_deadline_ends_the_wait_on_time(waiting: Waiting, server: ScriptedServer) -> None:
    server.routes["GET /v1/batches/b1"] = shown("in_progress")
    assert waiting.run("b1", deadline=START + 1000)["status"] == "deadline"
    assert waiting.now == START + 1000 and only_looked(server)


def test_times_that_have_passed_end_the_wait_no_sooner_than_the_first_look(waiting: Waiting) -> None:
    # A trigger that fires at once runs into a fault of Airflow 3.3.
    assert waiting.run("b1", deadline=START - 5, first_look_at=START + 10)["status"] == "deadline"
    assert waiting.now == START + 10


@pytest.mark.parametrize("status", [429, 503])
def test_a_provider_is_left_alone_for_as_long_as_it_asks(
    waiting: Waiting, server: ScriptedServer, status: int
) -> None:
    server.script = [
        Reply(status, {"error": {"message": "later"}}, {"Retry-After": "500"}),
        shown("completed"),
    ]
    assert waiting.run("b1")["status"] == "ended"
    assert waiting.now >= START + 500


def test_a_long_retry_after_does_not_outlast_the_deadline(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [Reply(429, {"error": {"message": "slow"}}, {"Retry-After": "86400"})]
    assert waiting.run("b1", deadline=START + 600)["status"] == "deadline"
    assert waiting.now == START + 600


def test_a_wait_that_starts_over_keeps_to_the_same_times(server: ScriptedServer) -> None:
    server.routes["GET /v1/batches/b1"] = shown("in_progress")
    order = {"deadline": START + 500, "first_look_at": START + 10}
    again = Waiting(server, now=START + 400)
    assert again.run("b1", **order)["status"] == "deadline"
    assert again.now == START + 500


# -- several batches -------------------------------------------------------------------------------
def test_all_batches_are_waited_for(waiting: Waiting, server: ScriptedServer) -> None:
    server.script = [
        shown("completed", "b1"), shown("in_progress", "b2"), shown("expired", "b2"),
    ]  # fmt: skip
    assert waiting.run("b1", "b2") == {"version": 1, "status": "ended", "ended": 2}
    asked = [request.path.rpartition("/")[2] for request in server.received]
    assert asked == ["b1", "b2", "b2"], "one that has ended is not asked for again"


def test_the_first_end_is_worth_a_call_where_more_are_planned(
    waiting: Waiting, server: ScriptedServer
) -> None:
    server.script = [shown("in_progress", "b1"), shown("in_progress", "b2")]
    server.script += [shown("in_progress", "b1"), shown("completed", "b2")]
    assert waiting.run("b1", "b2", more_planned=True) == {"version": 1, "status": "ended", "ended": 1}
    assert len(waiting.pauses) == 1


def test_many_batches_are_looked_up_in_one_list(waiting: Waiting, server: ScriptedServer) -> None:
    ids = [f"b{n}" for n in range(30)]
    server.script = [
        page(**dict.fromkeys(ids, "in_progress")),
        page(**{**dict.fromkeys(ids, "completed"), "b7": "in_progress"}),
        shown("completed", "b7"),
    ]
    assert waiting.run(*ids) == {"version": 1, "status": "ended", "ended": 30}
    assert [request.path.partition("?")[0] for request in server.received] == [
        "/v1/batches", "/v1/batches", "/v1/batches/b7",
    ]  # fmt: skip


def test_a_batch_that_the_list_does_not_show_is_asked_for_by_itself(
    waiting: Waiting, server: ScriptedServer
) -> None:
    server.script = [page(b1="completed", b2="completed", b3="completed", foreign="in_progress")]
    server.script += [shown("completed", "b4")]
    assert waiting.run("b1", "b2", "b3", "b4")["ended"] == 4
    assert server.received[-1].path == "/v1/batches/b4"
