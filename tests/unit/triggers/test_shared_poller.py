"""All waits of a connection share one client and its looks, and never stand in each other's way."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.triggers import poller
from airflow_batch_llm.triggers.looking import SINGLES_A_LOOK
from airflow_batch_llm.triggers.poller import AUTH_TRIES
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.unit.triggers.crowd import NO_KEY, START, Call, Crowd, Fault, Shelf

ENDED = {"version": 1, "status": "ended", "ended": 1}


def names(count: int, prefix: str = "b") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.fixture
def shelf_of() -> Iterator[Callable[..., Crowd]]:
    shelves: list[Shelf] = []

    def make(*batch_ids: str, status: str = "in_progress", **options: Any) -> Crowd:
        shelves.append(Shelf(dict.fromkeys(batch_ids, status)).__enter__())
        return Crowd(shelves[-1], **options)

    yield make
    for shelf in shelves:
        shelf.__exit__(None, None, None)


def minutely(*batch_ids: str, **fields: Any) -> list[WaitOrder]:
    """One wait a batch, each looking once a minute."""
    return [
        WaitOrder((name,), **{"interval_min": 60.0, "interval_max": 60.0, **fields}) for name in batch_ids
    ]


def complete(crowd: Crowd, *batch_ids: str) -> Callable[[], None]:
    return lambda: crowd.shelf.statuses.update(dict.fromkeys(batch_ids, "completed"))


def fail_lists(crowd: Crowd, fault: Fault | None) -> None:
    crowd.shelf.fault = lambda call: fault if call.is_list else None


# -- few calls -------------------------------------------------------------------------------------
def test_a_thousand_waits_a_minute_cost_under_twenty_calls(shelf_of: Callable[..., Crowd]) -> None:
    ids = names(1000)
    crowd = shelf_of(*ids)
    crowd.agenda = [(200.0, complete(crowd, *ids))]
    assert crowd.run(*minutely(*ids)) == [ENDED] * 1000
    minutes = crowd.time / 60
    assert crowd.shelf.singles == [] and len(crowd.shelf.lists) < 20 * minutes
    assert crowd.opened == 1
    looks = sorted({call.time for call in crowd.shelf.calls})
    assert max(late - early for early, late in zip(looks, looks[1:], strict=False)) <= 72


def test_waits_that_began_at_any_time_are_soon_looked_at_together(shelf_of: Callable[..., Crowd]) -> None:
    ids = names(60)
    crowd = shelf_of(*ids)
    crowd.agenda = [(400.0, complete(crowd, *ids))]
    orders = [order for n, name in enumerate(ids) for order in minutely(name, first_look_at=START + n)]
    crowd.run(*orders)
    late = [call for call in crowd.shelf.calls if 130 < call.time < 400]
    assert len(late) <= 2 * (400 - 130) / 60


def test_many_that_are_due_are_found_in_the_list_behind_many_that_are_not(
    shelf_of: Callable[..., Crowd],
) -> None:
    young, old = names(400, "young"), names(600, "old")
    crowd = shelf_of(*young, *old)
    crowd.agenda = [(300.0, complete(crowd, *young, *old))]
    crowd.run(*minutely(*old), *minutely(*young, first_look_at=START + 30))
    assert len(crowd.shelf.singles) <= 10
    assert len(crowd.shelf.lists) < 20 * crowd.time / 60


def test_a_young_batch_is_looked_at_soon_beside_many_old_ones(shelf_of: Callable[..., Crowd]) -> None:
    old = names(300)
    crowd = shelf_of("young", *old)
    young: list[float] = []

    async def look_after_the_young() -> None:
        await crowd.wait(WaitOrder(("young",), first_look_at=START + 1000, interval_min=15.0))
        young.append(crowd.time)

    tasks: list[asyncio.Task[None]] = []
    crowd.agenda = [
        (990.0, lambda: tasks.append(asyncio.create_task(look_after_the_young()))),
        (1050.0, complete(crowd, "young")),
        (1300.0, complete(crowd, *old)),
    ]
    crowd.run(*[WaitOrder((name,), interval_min=15.0, interval_max=300.0) for name in old])
    assert 1050 <= young[0] <= 1075
    shown = [
        call.time
        for call in crowd.shelf.calls
        if 1000 <= call.time <= young[0]
        and (call.path == "/batches/young" or (call.is_list and "after" not in call.path))
    ]
    assert shown[0] <= 1005
    assert max(later - earlier for earlier, later in zip(shown, shown[1:], strict=False)) <= 25
    meanwhile = [call for call in crowd.shelf.calls if 1000 <= call.time < 1050]
    assert len(meanwhile) <= 4 + 4, "its looks do not make the old ones be looked at as often"


def test_who_waits_for_a_time_only_is_not_woken_by_the_looks_of_others(
    shelf_of: Callable[..., Crowd],
) -> None:
    crowd = shelf_of("b0")
    crowd.agenda = [(300.0, complete(crowd, "b0"))]
    watcher, sender = crowd.run(*minutely("b0"), WaitOrder((), not_before=START + 3000))
    assert watcher == ENDED
    assert sender["status"] == "due" and crowd.time == 3000


def test_the_first_look_is_nobody_elses(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(6), status="completed")
    early, late = minutely(*names(6)[1:]), minutely("b0", first_look_at=START + 10)
    ends: list[float] = []

    async def note(order: WaitOrder) -> None:
        await crowd.wait(order)
        ends.append(crowd.time)

    async def main() -> None:
        await asyncio.gather(*map(note, [*early, *late]))

    asyncio.run(main())
    assert ends == [0] * 5 + [10], "a list that shows its batch ends no wait before its first look"


def test_what_the_list_does_not_show_is_asked_for_one_by_one_and_spread_out(
    shelf_of: Callable[..., Crowd],
) -> None:
    foreign, old = names(700, "foreign"), names(50, "old")
    crowd = shelf_of(*foreign, *old)
    crowd.agenda = [(300.0, complete(crowd, *old))]
    assert crowd.run(*minutely(*old)) == [ENDED] * 50
    assert len(crowd.shelf.lists) <= 12, "a list that shows none of ours is not read again and again"
    at_once: dict[float, int] = {}
    for call in crowd.shelf.singles:
        at_once[call.time] = at_once.get(call.time, 0) + 1
    assert max(at_once.values()) <= SINGLES_A_LOOK
    first_round = [call.path for call in crowd.shelf.singles if call.time < 30]
    assert sorted(first_round) == sorted(f"/batches/{name}" for name in old)
    assert crowd.shelf.most_at_once <= 4


def test_a_list_is_read_only_as_far_as_it_saves_calls(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(8), *names(2000, "foreign"), "ancient", status="completed")
    crowd.run(*minutely(*names(8), "ancient"))
    assert len(crowd.shelf.lists) <= 3
    assert [call.path for call in crowd.shelf.singles] == ["/batches/ancient"]


def test_a_list_that_once_showed_nothing_is_read_again_later(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of("foreign")
    crowd.shelf.statuses.update(dict.fromkeys(names(60), "in_progress"))
    crowd.shelf.unlisted.update(names(60))
    crowd.agenda = [(30.0, crowd.shelf.unlisted.clear), (1500.0, complete(crowd, *names(60)))]
    assert crowd.run(*minutely(*names(60))) == [ENDED] * 60
    late = [call for call in crowd.shelf.calls if call.time > 700]
    assert len(late) < 60, "once a turn would be 600 calls and more"


def test_a_provider_without_a_list_is_asked_for_each_batch(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(50), status="completed", listless=True)
    assert crowd.run(*minutely(*names(50))) == [ENDED] * 50
    assert crowd.shelf.lists == [] and len(crowd.shelf.singles) == 50
    assert crowd.shelf.most_at_once <= 4


def test_a_list_call_that_is_refused_is_not_made_again(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(10))
    fail_lists(crowd, Fault(404, "no_such_endpoint"))
    crowd.agenda = [(100.0, complete(crowd, *names(10)))]
    assert crowd.run(*minutely(*names(10))) == [ENDED] * 10
    assert len(crowd.shelf.lists) == 1


def test_several_batches_of_one_wait_are_looked_at_in_one_turn(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(50), listless=True)
    crowd.agenda = [(50.0, complete(crowd, *names(50)))]
    order = WaitOrder(tuple(names(50)), interval_min=60.0, interval_max=60.0)
    assert crowd.run(order) == [{"version": 1, "status": "ended", "ended": 50}]
    assert len(crowd.shelf.singles) == 100, "each of them once a turn"


def test_a_page_of_megabytes_is_not_read_in_the_event_loop(
    shelf_of: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    real = OpenAIBackend._page

    def noted(self: OpenAIBackend, reply: Any) -> Any:
        readers.append(threading.get_ident())
        return real(self, reply)

    monkeypatch.setattr(OpenAIBackend, "_page", noted)
    for errors, in_the_loop in ((0, True), (50, False)):
        crowd = shelf_of(*names(20), status="failed")
        crowd.shelf.errors = errors
        assert crowd.run(*minutely(*names(20))) == [ENDED] * 20
        assert (readers.pop() == threading.get_ident()) == in_the_loop


# -- faults ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_keeps_all_away(shelf_of: Callable[..., Crowd], status: int) -> None:
    crowd = shelf_of(*names(20), "late", status="completed")
    crowd.shelf.fault = lambda call: (
        Fault(status, "slow_down", {"Retry-After": "500"}) if call.time < 1 else None
    )
    orders = [*minutely(*names(20)), *minutely("late", first_look_at=START + 30)]
    assert crowd.run(*orders) == [ENDED] * 21
    first, *rest = [call.time for call in crowd.shelf.calls]
    assert first == 0 and min(rest) >= 500


def test_an_outage_ends_no_wait(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(20), status="completed")
    crowd.shelf.fault = lambda call: Fault(503) if call.time < 4000 else None
    assert crowd.run(*minutely(*names(20))) == [ENDED] * 20
    assert len(crowd.shelf.calls) < 100


def test_what_a_list_showed_before_it_broke_off_counts(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(150), status="completed")
    crowd.shelf.fault = lambda call: Fault(503) if "after" in call.path and call.time < 1 else None
    ends: dict[str, float] = {}

    async def note(order: WaitOrder) -> None:
        await crowd.wait(order)
        ends[order.batches[0]] = crowd.time

    async def main() -> None:
        await asyncio.gather(*map(note, minutely(*names(150))))

    asyncio.run(main())
    assert {ends[name] for name in names(100)} == {0}
    assert all(40 < ends[name] < 80 for name in names(150)[100:])


def test_a_key_that_is_changed_meanwhile_is_read_again_for_all(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(20))
    crowd.shelf.fault = lambda call: NO_KEY if (call.key == "new") != (call.time >= 100) else None

    def change_key() -> None:
        crowd.key = "new"

    crowd.agenda = [(160.0, change_key), (300.0, complete(crowd, *names(20)))]
    assert crowd.run(*minutely(*names(20))) == [ENDED] * 20
    assert crowd.opened > 1


def test_a_key_that_stays_wrong_ends_all_waits_after_a_few_looks(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(20), "slow", "late")
    crowd.shelf.fault = lambda call: NO_KEY if call.time > 50 else None
    slow = WaitOrder(("slow",), interval_min=400.0, interval_max=400.0)
    late = WaitOrder(("late",), first_look_at=START + 5000)
    hasty = [WaitOrder((name,), first_look_at=START + 40 + 3 * n) for n, name in enumerate(names(20))]
    events = crowd.run(*hasty, slow, late)
    assert {(event["status"], event["code"]) for event in events} == {("auth", "BLLM-020")}
    refused = [call for call in crowd.shelf.calls if call.time > 50]
    assert len([call for call in refused if call.time < 5000]) == AUTH_TRIES
    assert refused[AUTH_TRIES - 1].time - refused[0].time > 60, "a change of keys gets its time"
    assert crowd.time >= 5000, "no event before the first look"


def test_an_account_that_cannot_pay_ends_all_waits_with_its_code(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(9))
    fail_lists(crowd, Fault(429, "insufficient_quota"))
    assert {(e["status"], e["code"]) for e in crowd.run(*minutely(*names(9)))} == {("account", "BLLM-021")}


def test_a_batch_that_is_denied_concerns_its_own_waits(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(9))
    crowd.agenda = [(200.0, complete(crowd, *names(9)))]
    *others, one, two = crowd.run(*minutely(*names(9)), *minutely("unknown", "unknown"))
    assert others == [ENDED] * 9
    assert one == two == {"version": 1, "status": "gone", "ended": 0}


def test_a_batch_that_is_denied_lets_the_connection_be_read_again(shelf_of: Callable[..., Crowd]) -> None:
    """It was given another server: who comes back for the batch finds it there, while others go on."""
    crowd, other = shelf_of("old"), shelf_of("new").shelf
    crowd.agenda = [(50.0, lambda: setattr(crowd, "shelf", other)), (300.0, complete(crowd, "old", "new"))]
    events: list[dict[str, Any]] = []

    async def come_back() -> None:
        while not events or events[-1]["status"] == "gone":
            (order,) = minutely("new", first_look_at=crowd.now + 60)
            events.append(await crowd.wait(order))

    async def main() -> None:
        other.statuses["old"] = "in_progress"
        await asyncio.gather(come_back(), crowd.wait(minutely("old")[0]))

    asyncio.run(main())
    assert [event["status"] for event in events] == ["gone", "ended"]
    assert crowd.opened == crowd.closed == 2


def test_a_batch_that_the_key_may_not_see_ends_its_own_wait_only(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(9))
    crowd.agenda = [(1000.0, complete(crowd, *names(9)))]
    crowd.shelf.fault = lambda call: Fault(403, "not_yours") if "foreign" in call.path else None
    # It alone is looked at for a while: its refusals must not count against the key.
    *others, own = crowd.run(
        *[WaitOrder((name,), interval_min=900.0, interval_max=900.0) for name in names(9)],
        WaitOrder(("foreign",), first_look_at=START + 300, interval_min=15.0),
    )
    assert others == [ENDED] * 9
    assert (own["status"], own["code"]) == ("auth", "BLLM-020")


def test_a_batch_that_the_key_may_not_see_does_not_put_off_the_others(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(12), status="completed", listless=True)
    crowd.shelf.fault = lambda call: Fault(403, "not_yours") if call.path.endswith("/b3") else None
    ends: dict[str, float] = {}

    async def note(order: WaitOrder) -> None:
        await crowd.wait(order)
        ends[order.batches[0]] = crowd.time

    async def main() -> None:
        await asyncio.gather(*map(note, minutely(*names(12))))

    asyncio.run(main())
    assert max(ends[name] for name in names(12) if name != "b3") < 40


def test_a_batch_whose_calls_always_fail_stands_in_nobodys_way(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(30), listless=True)
    poison = {f"/batches/b{number}" for number in range(6)}
    crowd.shelf.fault = lambda call: Fault(500) if call.path in poison else None
    crowd.agenda = [(10.0, complete(crowd, *names(30)))]
    orders = minutely(*names(6), deadline=START + 3000) + minutely(*names(30)[6:], deadline=START + 3000)
    events = crowd.run(*orders)
    assert [event["status"] for event in events] == ["deadline"] * 6 + ["ended"] * 24


def test_a_request_that_is_refused_ends_its_own_wait_in_the_end(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(3))
    crowd.shelf.fault = lambda call: Fault(400, "bad_id") if call.path.endswith("b1") else None
    crowd.agenda = [(20_000.0, complete(crowd, "b0", "b2"))]
    events = crowd.run(*minutely(*names(3)))
    assert [(event["status"], event.get("code")) for event in events] == [
        ("ended", None), ("error", "BLLM-023"), ("ended", None),
    ]  # fmt: skip


def test_a_fault_of_our_own_ends_the_waits_and_does_not_leave_them_hanging(
    shelf_of: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(poller.ConnectionPoller, "_take_in", broken)
    crowd = shelf_of(*names(2))
    events = crowd.run(*minutely(*names(2)))
    assert [(event["status"], event["code"]) for event in events] == [("error", "ZeroDivisionError")] * 2


def test_trouble_is_told_once_in_the_log_of_every_task_concerned(
    shelf_of: Callable[..., Crowd],
) -> None:
    task: contextvars.ContextVar[str] = contextvars.ContextVar("task", default="nobody")
    lines: list[tuple[str, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((task.get(), record.getMessage()))

    crowd = shelf_of("one", "other")
    crowd.shelf.fault = lambda call: Fault(503) if call.time < 200 else None
    crowd.agenda = [(300.0, complete(crowd, "one", "other"))]

    async def waiting(name: str) -> None:
        task.set(name)
        await crowd.wait(minutely(name)[0])

    async def main() -> None:
        await asyncio.gather(waiting("one"), waiting("other"))

    handler = Handler()
    poller.log.addHandler(handler)
    poller.log.setLevel(logging.INFO)
    try:
        asyncio.run(main())
    finally:
        poller.log.removeHandler(handler)
        poller.log.setLevel(logging.NOTSET)
    trouble = "a look at 1 batches failed (BLLM-022); trying again"
    again = "1 batches can be looked at again"
    assert sorted(lines) == [("one", again), ("one", trouble), ("other", again), ("other", trouble)]


def test_the_shared_look_stands_in_no_single_task_s_log(
    shelf_of: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = shelf_of("b0", status="completed")
    kept: contextvars.ContextVar[str] = contextvars.ContextVar("kept")
    seen: list[Any] = []
    real = crowd._open

    async def opened() -> Any:
        seen.append((structlog.contextvars.get_contextvars(), kept.get()))
        return await real()

    async def main() -> None:
        kept.set("connections may be preset in the context")
        structlog.contextvars.bind_contextvars(trigger_id=7)
        monkeypatch.setattr(crowd, "_open", opened)
        await crowd.wait(minutely("b0")[0])
        assert structlog.contextvars.get_contextvars() == {"trigger_id": 7}

    asyncio.run(main())
    assert seen == [({}, "connections may be preset in the context")]


# -- coming and going ------------------------------------------------------------------------------
def test_a_wait_that_is_cancelled_leaves_the_others_as_they_are(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(10))

    async def main() -> list[Any]:
        # The first one is cancelled: its task made the poller and opened the client.
        tasks = [asyncio.create_task(crowd.wait(order)) for order in minutely(*names(10))]
        crowd.agenda = [
            (70.0, lambda: [task.cancel() for task in tasks[:5]] and None),
            (200.0, complete(crowd, *names(10))),
        ]
        return await asyncio.gather(*tasks, return_exceptions=True)

    events = asyncio.run(main())
    assert all(isinstance(event, asyncio.CancelledError) for event in events[:5])
    assert events[5:] == [ENDED] * 5
    assert crowd.opened == crowd.closed == 1


def test_a_wait_that_is_cancelled_in_the_middle_of_a_look_leaves_the_look_as_it_is(
    shelf_of: Callable[..., Crowd],
) -> None:
    crowd = shelf_of(*names(10), status="completed")
    asked, go_on = threading.Event(), threading.Event()

    def slow(call: Call) -> None:
        asked.set()
        assert go_on.wait(30)

    crowd.shelf.fault = slow

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(crowd.wait(order)) for order in minutely(*names(10))]
        await asyncio.to_thread(asked.wait, 30)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        go_on.set()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(main()) == [ENDED] * 9
    assert len(crowd.shelf.calls) == 1


def test_the_last_to_leave_closes_the_client(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(4), status="completed")
    crowd.run(*minutely(*names(4)))
    assert (crowd.opened, crowd.closed) == (1, 1)
    assert poller._pollers == {}
    crowd.run(*minutely(*names(4)))
    assert (crowd.opened, crowd.closed) == (2, 2)


def test_a_loop_that_ends_in_the_middle_leaves_nothing_behind(
    shelf_of: Callable[..., Crowd], recwarn: pytest.WarningsRecorder
) -> None:
    crowd = shelf_of(*names(4))
    asked = threading.Event()
    crowd.shelf.fault = lambda call: asked.set() or Fault(hang=True)

    async def main() -> None:
        for order in minutely(*names(4)):
            asyncio.create_task(crowd.wait(order))
        await asyncio.to_thread(asked.wait, 30)

    asyncio.run(main())
    assert (crowd.opened, crowd.closed) == (1, 1)
    assert poller._pollers == {} and not recwarn.list


def test_a_poller_that_is_cancelled_leaves_no_wait_hanging(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(2))

    async def main() -> list[Any]:
        waits = [asyncio.create_task(crowd.wait(order)) for order in minutely(*names(2))]
        crowd.agenda = [
            (70.0, lambda: [t.cancel() for t in asyncio.all_tasks() if t.get_name() == poller.NAME])
        ]
        return await asyncio.gather(*waits, return_exceptions=True)

    assert [type(event) for event in asyncio.run(main())] == [asyncio.CancelledError] * 2
    assert crowd.opened == crowd.closed == 1


def test_connections_and_loops_do_not_share(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(2), status="completed")

    async def of(conn_id: str) -> dict[str, Any]:
        return await wait(WaitOrder(("b0",)), conn_id, crowd._open)

    async def main() -> None:
        assert await asyncio.gather(of("one"), of("other"), of("one")) == [ENDED] * 3

    asyncio.run(main())
    assert crowd.opened == 2
    threads = [threading.Thread(target=asyncio.run, args=(of("one"),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert crowd.opened == crowd.closed == 4


def test_times_are_kept_while_a_look_hangs(shelf_of: Callable[..., Crowd]) -> None:
    crowd = shelf_of(*names(2))
    crowd.shelf.fault = lambda call: Fault(hang=True)
    orders = [
        WaitOrder(("b0",), deadline=time.time() + 0.2),
        WaitOrder(("b1",), not_before=time.time() + 0.1),
    ]

    async def main() -> list[dict[str, Any]]:
        return await asyncio.gather(*(wait(order, "llm_batch", crowd._open) for order in orders))

    assert [event["status"] for event in asyncio.run(main())] == ["deadline", "due"]
    assert crowd.opened == crowd.closed == 1
