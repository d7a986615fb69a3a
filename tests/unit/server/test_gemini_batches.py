from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.local_server import LocalServer
from tests.unit.server.gemini_client import Gemini, error_of, inlined, keys, lines, request, text_of

HALFWAY = {"pace": {"seconds": 86_400, "hold_at": 0.5}}


@pytest.fixture
def gemini(shared_server: LocalServer) -> Gemini:
    shared_server.set_scenario({})
    return Gemini(shared_server)


def halfway(gemini: Gemini, /, **scenario: object) -> str:
    """Start a batch of four rows that has done two."""
    gemini.server.set_scenario({**HALFWAY, **scenario})
    name = gemini.start(lines(4))
    gemini.until_held(name, 2)
    return name


def charged(gemini: Gemini, name: str) -> list[tuple[bool, str | None]]:
    charges = gemini.server.charges(name.removeprefix("batches/"))
    return [(charge["charged"], charge["fault"]) for charge in charges]


def test_a_batch_is_an_operation_that_ends_with_the_name_of_its_results(gemini: Gemini) -> None:
    name = halfway(gemini)
    running = gemini.get(name)
    assert running.keys() == {"name", "metadata"}, "done is left out, not false"
    metadata = running["metadata"]
    assert metadata["state"] == "BATCH_STATE_RUNNING" and metadata["name"] == name
    assert metadata["batchStats"] == {
        "requestCount": "4",
        "successfulRequestCount": "2",
        "pendingRequestCount": "2",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", metadata["createTime"])
    gemini.server.release(name.removeprefix("batches/"))
    done = gemini.until_done(name)
    assert done["metadata"]["state"] == "BATCH_STATE_SUCCEEDED" and "error" not in done
    assert done["metadata"]["batchStats"] == {"requestCount": "4", "successfulRequestCount": "4"}
    assert done["metadata"]["endTime"] >= done["metadata"]["createTime"]
    output = {"responsesFile": "files/batch-" + name.removeprefix("batches/")}
    assert done["metadata"]["output"] == output
    assert {k: v for k, v in done["response"].items() if k != "@type"} == output
    assert keys(gemini.rows(done)) == ["r-1", "r-2", "r-3", "r-4"]
    assert charged(gemini, name) == [(True, None)] * 4


def test_inline_results_stand_in_the_operation_twice_and_in_no_file(gemini: Gemini) -> None:
    done = gemini.until_done(gemini.start_inline(request("one"), request("two")))
    rows = done["response"]["inlinedResponses"]["inlinedResponses"]
    assert done["metadata"]["output"]["inlinedResponses"]["inlinedResponses"] == rows
    assert [row["metadata"] for row in rows] == [{"key": "r-1"}, {"key": "r-2"}]
    assert [text_of(row).split()[-1] for row in rows] == ["one", "two"]
    results = "/v1beta/files/batch-" + done["name"].removeprefix("batches/")
    assert error_of(gemini.http.get(results)) == (403, "PERMISSION_DENIED")


def test_lists_show_no_output_and_the_counts_of_the_beginning(gemini: Gemini) -> None:
    names = [gemini.start(lines(2)), gemini.start_inline(request("one"), request("two"))]
    for name in names:
        gemini.until_done(name)
    for listed in gemini.list(pageSize="2")["operations"]:
        assert listed["done"] and listed["name"] in names
        assert "response" not in listed and "output" not in listed["metadata"]
        assert listed["metadata"]["batchStats"] == {"requestCount": "2", "pendingRequestCount": "2"}


def test_lists_come_in_pages_newest_first_even_where_batches_go_in_between(gemini: Gemini) -> None:
    names = [gemini.start_inline(request("hello")) for _ in range(4)]
    for name in names:
        gemini.until_done(name)
    first = gemini.list(pageSize="2")
    assert [one["name"] for one in first["operations"]] == names[:1:-1]
    gemini.http.delete(f"/v1beta/{names[2]}").raise_for_status()
    second = gemini.list(pageSize="2", pageToken=first["nextPageToken"])
    assert [one["name"] for one in second["operations"]] == names[1::-1]
    for query in ({"pageToken": "made-up"}, {"filter": "x"}, {"pageSize": "-1"}):
        assert error_of(gemini.http.get("/v1beta/batches", params=query)) == (400, "INVALID_ARGUMENT")


def test_a_cancelled_batch_has_an_error_and_no_results_and_costs_nothing(gemini: Gemini) -> None:
    name = halfway(gemini)
    cancelled = gemini.http.post(f"/v1beta/{name}:cancel")
    assert (cancelled.status_code, cancelled.json()) == (200, {})
    done = gemini.until_done(name)
    assert done["metadata"]["state"] == "BATCH_STATE_CANCELLED" and done["error"]["code"] == 13
    assert "response" not in done and "output" not in done["metadata"]
    results = "/v1beta/files/batch-" + name.removeprefix("batches/")
    assert error_of(gemini.http.get(results)) == (403, "PERMISSION_DENIED")
    assert charged(gemini, name) == [(False, "withheld")] * 2


def test_a_cancelled_batch_may_show_what_it_had_answered(gemini: Gemini) -> None:
    name = halfway(gemini, gemini={"cancelled_results": True})
    gemini.http.post(f"/v1beta/{name}:cancel").raise_for_status()
    done = gemini.until_done(name)
    assert done["error"]["code"] == 13
    assert keys(gemini.rows({"response": done["metadata"]["output"]})) == ["r-1", "r-2"]
    assert charged(gemini, name) == [(True, None)] * 2


def test_an_expired_batch_has_no_results_and_costs_nothing(gemini: Gemini) -> None:
    gemini.server.set_scenario(
        {"batches": [{"fault": "expire", "after": 0.5}], "gemini": {"cancelled_results": True}}
    )
    name = gemini.start(lines(4))
    done = gemini.until_done(name)
    assert done["metadata"]["state"] == "BATCH_STATE_EXPIRED"
    assert "response" not in done and "output" not in done["metadata"]
    assert charged(gemini, name) == [(False, "withheld")] * 2


def test_cancelling_cannot_be_seen_and_comes_too_late_for_a_batch_that_has_ended(gemini: Gemini) -> None:
    name = halfway(gemini, pace={"seconds": 86_400, "hold_at": 0.5, "cancel_seconds": 86_400})
    for _ in range(2):
        assert gemini.http.post(f"/v1beta/{name}:cancel").json() == {}
    assert gemini.get(name)["metadata"]["state"] == "BATCH_STATE_RUNNING"
    gemini.server.release(name.removeprefix("batches/"))
    gemini.until_done(name)
    gemini.server.set_scenario({})
    ended = gemini.start(lines(1))
    gemini.until_done(ended)
    assert error_of(gemini.http.post(f"/v1beta/{ended}:cancel")) == (400, "FAILED_PRECONDITION")


def test_a_deleted_batch_is_not_found_and_its_results_go_with_it(gemini: Gemini) -> None:
    done = gemini.until_done(gemini.start(lines(1)))
    path = f"/v1beta/{done['name']}"
    assert gemini.http.delete(path).json() == {}
    for reply in (gemini.http.delete(path), gemini.http.get(path), gemini.http.post(f"{path}:cancel")):
        assert error_of(reply) == (404, "NOT_FOUND")
    results = gemini.http.get(f"/download/v1beta/{done['response']['responsesFile']}:download")
    assert error_of(results) == (403, "PERMISSION_DENIED")


def test_a_batch_that_is_deleted_while_it_runs_runs_on_unseen(gemini: Gemini) -> None:
    name = halfway(gemini)
    gemini.http.delete(f"/v1beta/{name}").raise_for_status()
    assert error_of(gemini.http.get(f"/v1beta/{name}")) == (404, "NOT_FOUND")
    gemini.server.release(None)
    for _ in range(20_000):
        if len(charged(gemini, name)) == 4:
            return
    raise AssertionError("it has stopped")


def test_states_may_have_the_other_prefix(gemini: Gemini) -> None:
    gemini.server.set_scenario({"gemini": {"job_states": True}})
    created = gemini.create(inlined(request("hello"))).json()
    assert created["metadata"]["state"] == "JOB_STATE_PENDING"
    assert gemini.until_done(created["name"])["metadata"]["state"] == "JOB_STATE_SUCCEEDED"


def test_looks_at_a_batch_are_shown_as_the_scenario_wants(gemini: Gemini) -> None:
    pace = {"hidden": 1, "statuses": ["BATCH_STATE_PENDING", "daydreaming"]}
    gemini.server.set_scenario({"pace": pace, "results": {"late": 1}})
    name = gemini.start(lines(1))
    assert error_of(gemini.http.get(f"/v1beta/{name}")) == (404, "NOT_FOUND")
    seen = [gemini.get(name) for _ in range(2)]
    assert [one["metadata"]["state"] for one in seen] == ["BATCH_STATE_PENDING", "daydreaming"]
    assert not any("done" in one or "output" in one["metadata"] for one in seen)
    done = gemini.until_done(name)
    while "response" not in done:
        assert done["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"
        done = gemini.get(name)
    assert keys(gemini.rows(done)) == ["r-1"]


def test_batches_of_other_protocols_are_not_found(gemini: Gemini) -> None:
    name = gemini.start(lines(1)).removeprefix("batches/")
    assert gemini.http.get(f"{gemini.server.url}/batches/{name}").status_code == 404
    assert error_of(gemini.http.get("/v1beta/batches/batch_of_openai")) == (404, "NOT_FOUND")


def test_a_killed_server_goes_on_with_its_batches_and_forgets_uploads_that_were_begun(tmp_path: Path) -> None:
    with LocalServer(tmp_path, scenario=HALFWAY) as server:
        gemini = Gemini(server)
        names = [gemini.start(lines(4)), gemini.start_inline(*[request("hello")] * 4)]
        for name in names:
            gemini.until_held(name, 2)
        url = gemini.begun()
        server.kill9()
        server.restart()
        assert error_of(gemini.chunk(url, b"x")) == (404, "NOT_FOUND")
        server.release()
        first, second = (gemini.until_done(name) for name in names)
        assert keys(gemini.rows(first)) == ["r-1", "r-2", "r-3", "r-4"]
        assert len(second["response"]["inlinedResponses"]["inlinedResponses"]) == 4
        assert server.summary()["executed"] == server.summary()["charged"] == 8
