"""The trigger as Airflow stores it, loads it and ends it."""

from __future__ import annotations

import asyncio
import json
import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.serde import deserialize, serialize

from airflow_batch_llm.triggers.batches import BatchLLMTrigger
from tests.unit.backends.scripted_server import Reply, ScriptedServer
from tests.unit.triggers.conftest import START, batch, shown

FULL: dict[str, Any] = {
    "conn_id": "llm_batch",
    "batches": ["b1", "b2"],
    "more_planned": True,
    "not_before": START + 0.25,
    "deadline": START + 1000,
    "first_look_at": START,
    "interval_min": 2.5,
    "interval_max": 40.0,
    "cancel_on_kill": True,
    "provisional": ["b2"],
    "version": 1,
}


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch, server: ScriptedServer) -> None:
    fields = {"conn_type": "batch_llm", "host": server.base_url, "password": "key-of-the-tests"}
    monkeypatch.setenv("AIRFLOW_CONN_LLM_BATCH", json.dumps({**fields, "extra": {"dialect": "generic"}}))


def loaded(classpath: str, kwargs: dict[str, Any]) -> BatchLLMTrigger:
    module, _, name = classpath.rpartition(".")
    made: BatchLLMTrigger = getattr(import_module(module), name)(**kwargs)
    return made


# -- storage ---------------------------------------------------------------------------------------
def test_it_comes_back_from_the_database_as_it_was() -> None:
    row = Trigger.from_object(BatchLLMTrigger(**FULL))
    # Long enough not to turn up in a ciphertext by chance.
    assert "first_look_at" not in row.encrypted_kwargs
    again = loaded(row.classpath, dict(row.kwargs))
    assert again.serialize() == (row.classpath, FULL)


def test_it_passes_through_the_serialization_of_a_defer() -> None:
    classpath, kwargs = BatchLLMTrigger(**FULL).serialize()
    assert deserialize(json.loads(json.dumps(serialize(kwargs)))) == kwargs
    assert loaded(classpath, kwargs).serialize() == (classpath, kwargs)


def test_a_row_of_the_first_release_still_loads() -> None:
    trigger = loaded(
        "airflow_batch_llm.triggers.batches.BatchLLMTrigger",
        {"conn_id": "llm_batch", "batches": ["b1"], "version": 1},
    )
    assert trigger.serialize()[1]["cancel_on_kill"] is False
    assert trigger.serialize()[1]["deadline"] is None
    assert trigger.serialize()[1]["provisional"] == []


def test_a_row_of_a_later_release_still_loads() -> None:
    # Two triggerers of different releases share the table while a deployment is upgraded.
    trigger = loaded(
        "airflow_batch_llm.triggers.batches.BatchLLMTrigger", {**FULL, "version": 2, "something_new": [1]}
    )
    assert trigger.serialize()[1] == {**FULL, "version": 2}


def test_it_carries_ids_and_times_only() -> None:
    _, kwargs = BatchLLMTrigger(**FULL).serialize()
    assert "key-of-the-tests" not in json.dumps(kwargs)
    assert len(json.dumps(kwargs)) < 1000


# -- running ---------------------------------------------------------------------------------------
def test_it_yields_one_small_event_and_returns(server: ScriptedServer) -> None:
    server.script = [shown("completed")]

    async def events() -> list[Any]:
        trigger = BatchLLMTrigger(conn_id="llm_batch", batches=["b1"])
        return [event.payload async for event in trigger.run()]

    found = asyncio.run(events())
    assert found == [{"version": 1, "status": "ended", "ended": 1}]
    assert server.received[0].headers["authorization"] == "Bearer key-of-the-tests"


def test_a_move_or_a_restart_never_touches_the_provider(server: ScriptedServer) -> None:
    asyncio.run(BatchLLMTrigger(**FULL).cleanup())
    assert server.received == []


# -- killing ---------------------------------------------------------------------------------------
def killed(
    monkeypatch: pytest.MonkeyPatch,
    states: Any,
    *,
    cancel_on_kill: bool = True,
    map_index: int = -1,
    has_task_instance: bool = True,
    provisional: list[str] | None = None,
) -> None:
    """Call ``on_kill`` where Airflow's API says these states of run ``r``."""

    def get_task_states(**asked: Any) -> Any:
        assert asked == {"dag_id": "d", "task_ids": ["g.t"], "run_ids": ["r"], "map_index": map_index}
        if isinstance(states, Exception):
            raise states
        return {"r": states} if states else {}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    trigger = BatchLLMTrigger(
        conn_id="llm_batch", batches=["b1", "b2"], cancel_on_kill=cancel_on_kill, provisional=provisional
    )
    if has_task_instance:
        ti = SimpleNamespace(dag_id="d", task_id="g.t", run_id="r", map_index=map_index)
        monkeypatch.setattr(BatchLLMTrigger, "task_instance", ti)
    asyncio.run(trigger.on_kill())


def cancelled(server: ScriptedServer) -> list[str]:
    return [request.path for request in server.received if request.method == "POST"]


@pytest.fixture
def cancels(server: ScriptedServer) -> ScriptedServer:
    for name in ("b1", "b2"):
        server.routes[f"GET /v1/batches/{name}"] = shown("in_progress", name)
        server.routes[f"POST /v1/batches/{name}/cancel"] = Reply(body=batch("cancelling", name))
    return server


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
def test_a_task_ended_by_hand_cancels_where_asked_to(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer, state: str
) -> None:
    killed(monkeypatch, {"g.t": state})
    assert cancelled(cancels) == ["/v1/batches/b1/cancel", "/v1/batches/b2/cancel"]


def test_a_batch_that_has_ended_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    """The task went on elsewhere and succeeded; a triggerer that hung is told of it late."""
    cancels.routes["GET /v1/batches/b1"] = shown("completed", "b1")
    killed(monkeypatch, {"g.t": "success"})
    assert cancelled(cancels) == ["/v1/batches/b2/cancel"]


def test_what_may_be_somebody_elses_is_never_cancelled(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    killed(monkeypatch, {"g.t": "failed"}, provisional=["b1"])
    assert cancelled(cancels) == ["/v1/batches/b2/cancel"]


def test_a_cancel_that_takes_its_time_is_not_cut_off_when_the_trigger_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def get_task_states(**asked_for: Any) -> Any:
        asked.set()
        assert answer.wait(30)
        return {"r": {"g.t": "failed"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    trigger = BatchLLMTrigger(conn_id="llm_batch", batches=["b1", "b2"], cancel_on_kill=True)
    ti = SimpleNamespace(dag_id="d", task_id="g.t", run_id="r", map_index=-1)
    monkeypatch.setattr(BatchLLMTrigger, "task_instance", ti)

    async def kill_twice() -> None:
        killing = asyncio.ensure_future(trigger.on_kill())
        await asyncio.to_thread(asked.wait, 30)
        killing.cancel("user-action")
        with pytest.raises(asyncio.CancelledError):
            await killing
        others = asyncio.all_tasks() - {asyncio.current_task()}
        answer.set()
        await asyncio.gather(*others)

    asyncio.run(kill_twice())
    assert cancelled(cancels) == ["/v1/batches/b1/cancel", "/v1/batches/b2/cancel"]


def test_a_mapped_task_is_found_by_its_index(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    killed(monkeypatch, {"g.t_2": "failed"}, map_index=2)
    assert len(cancelled(cancels)) == 2


def test_nothing_is_cancelled_unless_asked_to(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    killed(monkeypatch, {"g.t": "failed"}, cancel_on_kill=False)
    assert cancels.received == []


@pytest.mark.parametrize(
    "state", ["deferred", "queued", "running", "scheduled", "up_for_retry", "restarting"]
)
def test_a_clear_or_a_move_to_another_triggerer_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer, state: str
) -> None:
    killed(monkeypatch, {"g.t": state})
    assert cancels.received == []


@pytest.mark.parametrize(
    "states", [RuntimeError("the API is down"), {}, {"g.t": None}, {"g.other": "failed"}]
)
def test_a_state_that_cannot_be_read_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer, states: Any
) -> None:
    killed(monkeypatch, states)
    assert cancels.received == []


def test_a_trigger_without_task_instance_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    killed(monkeypatch, {"g.t": "failed"}, has_task_instance=False)
    assert cancels.received == []


def test_a_batch_that_cannot_be_cancelled_does_not_spare_the_next(
    monkeypatch: pytest.MonkeyPatch, cancels: ScriptedServer
) -> None:
    gone = Reply(404, {"error": {"message": "no such batch"}})
    cancels.routes["POST /v1/batches/b1/cancel"] = cancels.routes["GET /v1/batches/b1"] = gone
    killed(monkeypatch, {"g.t": "failed"})
    assert "/v1/batches/b2/cancel" in cancelled(cancels)
