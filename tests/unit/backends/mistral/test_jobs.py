"""Mistral's jobs over real HTTP: refused lines, one create call, reads that lag, pages, results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate, ResultFile
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.exceptions import (
    AuthError,
    ConfigurationError,
    InDoubt,
    LinesRefused,
    NotFound,
    RateLimited,
    Refused,
    TransferError,
    Unreachable,
)
from tests.unit.backends.calls import Scripted
from tests.unit.backends.scripted_server import Reply

METADATA = {META_TOKEN: "a1", META_JOB: "j1", META_ORIGIN: "o1"}
JOB = {
    "id": "job-1",
    "object": "batch",
    "status": "QUEUED",
    "input_files": ["file-1"],
    "endpoint": CHAT,
    "model": "m-1",
    "metadata": METADATA,
    "created_at": 1_780_000_000,
    "total_requests": 4,
    "completed_requests": 0,
    "succeeded_requests": 0,
    "failed_requests": 0,
    "errors": [],
}
DONE = JOB | {"status": "SUCCESS", "completed_requests": 4, "succeeded_requests": 3, "failed_requests": 1}
ORDER = CreateOrder(RequestTemplate(CHAT, "m-1"), "file-1", METADATA)
LINES = [f'{{"custom_id":"w-{n}","body":{{}}}}\n'.encode() for n in range(1, 5)]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "up.jsonl"
    path.write_bytes(b"".join(LINES))
    return path


def stored(**more: Any) -> Reply:
    return Reply(200, {"id": "file-1", "bytes": sum(map(len, LINES)), "num_lines": 4, **more})


def inline(local: Path) -> CreateOrder:
    return CreateOrder(RequestTemplate(CHAT, "m-1"), "", METADATA, lines=local, requests=4)


# -- upload ----------------------------------------------------------------------------------------
def test_an_upload_is_repeated_after_a_bad_gateway(mistral: Scripted, local: Path) -> None:
    mistral.server.script = [Reply(502, b"<html>", {"retry-after": "0"}), stored()]
    assert mistral.run(lambda backend: backend.upload(local, "batch-0")) == "file-1"
    first, second = mistral.server.seen("POST", "/files")
    assert first.body == second.body and first.headers["authorization"] == "Bearer key-1"
    assert b'name="purpose"\r\n\r\nbatch' in first.body and b'filename="batch-0.jsonl"' in first.body
    assert mistral.run(lambda backend: backend.ready("file-1")) is None


def refusal(*numbers: int | None) -> Reply:
    errors = [{"message": "Input should be a valid role", "line_number": number} for number in numbers]
    return Reply(422, {"detail": "Invalid file format.", "description": "secret words", "errors": errors})


def refused(mistral: Scripted, local: Path) -> list[int | None]:
    with pytest.raises(LinesRefused) as caught:
        mistral.run(lambda backend: backend.upload(local, "batch-0"))
    assert "role" not in str(caught.value) and "secret" not in str(caught.value)
    return [line.line for line in caught.value.lines]


def test_lines_refused_at_the_upload_are_named_whether_mistral_counts_from_one(
    mistral: Scripted, local: Path
) -> None:
    mistral.server.script = [refusal(2, 3), refusal(1)]  # line 2 alone is refused, too
    assert refused(mistral, local) == [2, 3]
    assert LINES[1] in mistral.last.body and LINES[2] not in mistral.last.body


def test_or_from_zero(mistral: Scripted, local: Path) -> None:
    taken = Reply(200, {"id": "file-p", "bytes": 0})
    mistral.server.script = [refusal(1, 2), taken, Reply(200, {}), refusal(0)]
    assert refused(mistral, local) == [2, 3]
    probe, deletion, second = mistral.server.received[1:]
    assert LINES[0] in probe.body and LINES[1] in second.body
    assert (deletion.method, deletion.path) == ("DELETE", "/v1/files/file-p")


def test_a_way_of_counting_that_the_file_has_no_lines_for_is_not_tried(
    mistral: Scripted, local: Path
) -> None:
    mistral.server.script = [refusal(0, 1), refusal(0), refusal(3, 4), refusal(1), refusal(9), refusal(0, 4)]
    assert refused(mistral, local) == [1, 2]
    assert refused(mistral, local) == [3, 4]
    assert refused(mistral, local) == []
    assert refused(mistral, local) == []
    assert len(mistral.server.received) == 6


def test_a_line_that_is_taken_alone_is_not_blamed(mistral: Scripted, local: Path) -> None:
    taken = [Reply(200, {"id": "file-p", "bytes": 0}), Reply(200, {})]
    mistral.server.script = [refusal(2), *taken, *taken]
    assert refused(mistral, local) == []


def test_a_refusal_that_names_nothing_is_one_of_lines_that_are_not_known(
    mistral: Scripted, local: Path
) -> None:
    mistral.server.script = [Reply(422, {"detail": "Invalid file format."}), Reply(422, b"<html>")]
    assert refused(mistral, local) == []
    assert refused(mistral, local) == []
    mistral.server.script = [refusal(None)]
    assert refused(mistral, local) == [None]


# -- create ----------------------------------------------------------------------------------------
def test_a_job_is_created_with_model_marks_and_window(mistral: Scripted) -> None:
    mistral.server.script = [Reply(200, JOB)] * 2
    batch = mistral.run(lambda backend: backend.create(ORDER))
    assert (batch.id, batch.status, batch.metadata) == ("job-1", RemoteStatus.PENDING, METADATA)
    assert mistral.last.path == "/v1/batch/jobs"
    assert mistral.last.json == {
        "endpoint": CHAT,
        "input_files": ["file-1"],
        "model": "m-1",
        "metadata": METADATA,
        "timeout_hours": 24,
    }
    mistral.run(lambda backend: backend.create(ORDER), completion_window="7d", inline=True)
    assert (mistral.last.json["timeout_hours"], mistral.last.json["input_files"]) == (168, ["file-1"])


def test_extra_fields_cannot_displace_the_orders_own(mistral: Scripted) -> None:
    mistral.server.script = [Reply(200, JOB)]
    order = CreateOrder(ORDER.template, "file-1", METADATA, extra={"timeout_hours": 48, "model": "other"})
    mistral.run(lambda backend: backend.create(order))
    assert (mistral.last.json["timeout_hours"], mistral.last.json["model"]) == (48, "m-1")


def test_requests_go_along_with_the_call_where_there_is_no_upload(mistral: Scripted, local: Path) -> None:
    mistral.server.script = [Reply(200, JOB | {"input_files": []})]
    mistral.run(lambda backend: backend.create(inline(local)))
    assert mistral.last.headers["content-type"] == "application/json"
    assert mistral.last.json["requests"] == [json.loads(line) for line in LINES]
    assert "input_files" not in mistral.last.json and mistral.last.json["model"] == "m-1"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(drop=True), InDoubt),
        (Reply(503, b"busy"), InDoubt),
        (Reply(200, {"status": "QUEUED"}), InDoubt),
        (Reply(200, b"<html>"), InDoubt),
        (Reply(200, {"id": "req_123", "object": "error", "message": "timed out"}), InDoubt),
        (Reply(422, {"detail": [{"type": "x", "loc": ["body", "model"], "msg": "no such model"}]}), Refused),
        (Reply(422, {"detail": "unsupported endpoint"}), Refused),
        (Reply(404, {"detail": "File not found"}), NotFound),
        (Reply(401, {"detail": "Unauthorized"}), AuthError),
        (Reply(429, {"message": "Rate limit"}), RateLimited),
    ],
)
def test_a_create_call_is_made_once_and_says_whether_it_took_effect(
    mistral: Scripted, reply: Reply, error: type[Exception]
) -> None:
    mistral.server.script = [reply, Reply(200, JOB)]
    with pytest.raises(error) as caught:
        mistral.run(lambda backend: backend.create(ORDER))
    assert type(caught.value) is error
    assert len(mistral.server.received) == 1


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        (
            {"type": "invalid_model", "loc": ["body", "model"]},
            "invalid_model",
            "code invalid_model, at body.model:",
        ),
        ({"type": "missing", "loc": ["secret words"]}, "missing", "code missing: refused"),
        ({"type": "secret words", "loc": ["body", 0]}, "http_422", "code not named, at body.0: refused"),
        ({"type": None, "loc": "secret words"}, "http_422", "HTTP 422: refused"),
    ],
)
def test_a_field_of_the_call_that_is_refused_is_named_without_the_providers_words(
    mistral: Scripted, fault: dict[str, Any], reason: str, said: str
) -> None:
    mistral.server.script = [Reply(422, {"detail": [fault | {"msg": "secret words"}]})]
    with pytest.raises(Refused) as caught:
        mistral.run(lambda backend: backend.create(ORDER))
    assert (caught.value.reason, caught.value.status_code) == (reason, 422)
    assert said in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 403, 422, 429])
def test_too_many_pending_requests_are_waited_out_with_any_status(mistral: Scripted, status: int) -> None:
    said = "The limit of 1000000 pending requests per workspace was exceeded"
    mistral.server.script = [Reply(status, {"detail": said})]
    with pytest.raises(RateLimited) as caught:
        mistral.run(lambda backend: backend.create(ORDER))
    assert caught.value.reason == "queue_full"


def test_requests_that_went_along_are_refused_by_their_place(mistral: Scripted, local: Path) -> None:
    at = {"type": "missing", "loc": ["body", "requests", 2, "body", "messages"], "msg": "Field required"}
    mistral.server.script = [Reply(422, {"detail": [at]}), refusal(2), refusal(1)]
    for expected in (3, 2):
        with pytest.raises(LinesRefused) as caught:
            mistral.run(lambda backend: backend.create(inline(local)))
        assert [line.line for line in caught.value.lines] == [expected]
    assert len(mistral.server.seen("POST", "/batch/jobs")) == 2


def test_a_call_without_an_upload_misses_none(mistral: Scripted, local: Path) -> None:
    mistral.server.script = [Reply(404, {"detail": "Not Found"})]
    with pytest.raises(Refused):
        mistral.run(lambda backend: backend.create(inline(local)))


# -- looking ---------------------------------------------------------------------------------------
def test_a_job_that_is_not_found_yet_is_looked_for_in_the_list(mistral: Scripted) -> None:
    mistral.server.script = [
        Reply(404, {"detail": "Not Found"}),
        Reply(200, {"data": [JOB | {"id": "job-0"}, JOB], "total": 2}),
    ]
    assert mistral.run(lambda backend: backend.retrieve("job-1")).id == "job-1"


def test_a_job_that_neither_knows_is_not_found(mistral: Scripted) -> None:
    mistral.server.script = [Reply(404), Reply(200, {"data": [JOB | {"id": "job-0"}], "total": 1})]
    with pytest.raises(NotFound):
        mistral.run(lambda backend: backend.retrieve("job-1"))


def test_a_list_that_fails_leaves_open_whether_a_job_is_there(mistral: Scripted) -> None:
    mistral.server.script = [Reply(404), Reply(503), Reply(503)]
    with pytest.raises(Unreachable):
        mistral.run(lambda backend: backend.retrieve("job-1"), max_retries=0)


def page(first: int, count: int, total: int | None) -> Reply:
    jobs = [JOB | {"id": f"job-{n}", "metadata": {META_TOKEN: f"t{n}"}} for n in range(first, first + count)]
    return Reply(200, {"data": jobs, "total": total})


def test_a_job_is_found_by_its_token_on_a_later_page(mistral: Scripted) -> None:
    mistral.server.script = [page(0, 100, 130), page(100, 30, 130), page(0, 0, 130)]
    (found,) = mistral.run(lambda backend: backend.find("t120"))
    assert found.id == "job-120"
    asked = [request.path.partition("?")[2] for request in mistral.server.received]
    assert ["page=0&" in query for query in asked] == [True, False, False]
    assert "page=1&" in asked[1] and "page_size=100" in asked[1] and "order_by=-created" in asked[1]


def test_a_list_of_one_page_is_read_with_one_call(mistral: Scripted) -> None:
    mistral.server.script = [page(0, 3, 3), Reply(200, {"object": "list", "total": 0})]
    assert mistral.run(lambda backend: backend.find("other")) == []
    assert mistral.run(lambda backend: backend.find("other")) == []


def test_a_list_that_loses_a_job_between_two_pages_has_no_end(mistral: Scripted) -> None:
    # One of the first page was deleted: the first of the second moved up, and was not seen.
    mistral.server.script = [page(0, 100, 130), page(101, 29, 129), page(0, 0, 129)]
    with pytest.raises(InDoubt):
        mistral.run(lambda backend: backend.find("t100"))


def test_a_server_that_sends_the_same_page_again_has_not_come_to_its_end(mistral: Scripted) -> None:
    mistral.server.routes["GET /v1/batch/jobs"] = page(0, 100, 130)
    with pytest.raises(InDoubt):
        mistral.run(lambda backend: backend.find("t120"))
    assert len(mistral.server.received) == 2


def test_the_connection_is_tried_with_one_short_list(mistral: Scripted) -> None:
    mistral.server.script = [page(0, 1, 9), Reply(401, {"detail": "Unauthorized"})]
    assert "accepts the key" in mistral.run(lambda backend: backend.probe())
    with pytest.raises(AuthError):
        mistral.run(lambda backend: backend.probe())


# -- states and results ----------------------------------------------------------------------------
def shown(mistral: Scripted, **values: Any) -> RemoteBatch:
    mistral.server.script = [Reply(200, DONE | values)]
    return mistral.run(lambda backend: backend.retrieve("job-1"))


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        ("QUEUED", RemoteStatus.PENDING),
        ("RUNNING", RemoteStatus.RUNNING),
        ("SUCCESS", RemoteStatus.DONE),
        ("FAILED", RemoteStatus.FAILED),
        ("TIMEOUT_EXCEEDED", RemoteStatus.EXPIRED),
        ("CANCELLATION_REQUESTED", RemoteStatus.CANCELLING),
        ("CANCELLED", RemoteStatus.CANCELLED),
        ("Success", RemoteStatus.DONE),
        ("PAUSED", RemoteStatus.UNKNOWN),
        (None, RemoteStatus.UNKNOWN),
    ],
)
def test_states_and_what_counts_as_answered(mistral: Scripted, raw: str | None, status: RemoteStatus) -> None:
    batch = shown(mistral, status=raw, output_file="file-o", error_file="file-e")
    assert batch.status is status
    assert batch.files == (ResultFile("output", "file-o"), ResultFile("error", "file-e"))
    assert batch.counts == {"total": 4, "completed": 3, "failed": 1}
    assert (batch.input_file_id, batch.created_at) == ("file-1", 1_780_000_000.0)


def test_what_is_absent_or_of_another_form_is_read_with_patience(mistral: Scripted) -> None:
    batch = shown(
        mistral,
        output_file={"id": "file-o"},
        error_file="",
        succeeded_requests=None,
        metadata=None,
        errors=[{"message": "secret", "count": 2}],
        created_at="2026-11-29T10:00:00Z",
        outputs=None,
    )
    assert batch.files == (ResultFile("output", "file-o"),)
    assert batch.counts["completed"] == 3  # processed less failed
    assert batch.metadata == {} and batch.errors[0].code == "batch_error"


def test_a_cancel_that_came_too_late_is_answered_with_the_job(mistral: Scripted) -> None:
    mistral.server.script = [Reply(400, {"detail": "finished"}), Reply(200, DONE)]
    assert mistral.run(lambda backend: backend.cancel("job-1")).status is RemoteStatus.DONE
    mistral.server.script = [Reply(422, {"detail": "no"}), Reply(200, JOB)]
    with pytest.raises(Refused):
        mistral.run(lambda backend: backend.cancel("job-1"))
    mistral.server.script = [Reply(200, JOB | {"status": "CANCELLATION_REQUESTED"})]
    assert mistral.run(lambda backend: backend.cancel("job-1")).status is RemoteStatus.CANCELLING


def test_a_result_file_arrives_whole_or_not_at_all(mistral: Scripted, tmp_path: Path) -> None:
    local = tmp_path / "out.jsonl"
    mistral.server.routes["GET /v1/files/file-o"] = Reply(200, {"id": "file-o", "bytes": 40})
    mistral.server.script = [Reply(200, b'{"custom_id":"w-1"}\n')]
    batch = RemoteBatch("job-1", RemoteStatus.DONE, "SUCCESS")
    with pytest.raises(TransferError):
        mistral.run(
            lambda backend: backend.download(batch, ResultFile("output", "file-o"), local), max_retries=0
        )
    assert list(tmp_path.iterdir()) == []


def test_a_result_file_without_a_size_is_held_against_the_jobs_counts(
    mistral: Scripted, tmp_path: Path
) -> None:
    local, row = tmp_path / "out.jsonl", b'{"custom_id":"w-1"}\n'
    mistral.server.routes["GET /v1/files/file-o"] = Reply(200, {"id": "file-o"})
    mistral.server.script = [Reply(200, row), Reply(200, row * 2)]
    output = ResultFile("output", "file-o")
    batch = RemoteBatch("job-1", RemoteStatus.DONE, "SUCCESS", files=(output,), counts={"completed": 2})
    mistral.run(lambda backend: backend.download(batch, output, local))
    assert local.read_bytes() == row * 2


# -- results that hang on the job ------------------------------------------------------------------
ROWS = [{"custom_id": f"w-{n}", "response": {"status_code": 200, "body": {}}} for n in range(4)]
INLINE_DONE = DONE | {"input_files": []}


def outputs(count: int, **more: Any) -> Reply:
    return Reply(200, INLINE_DONE | {"outputs": ROWS[:count], **more})


def fetched(mistral: Scripted, local: Path, *script: Reply, files: Any = None) -> list[Any]:
    mistral.server.script = [Reply(200, INLINE_DONE | (files or {})), *script]

    async def use(backend: Any) -> None:
        batch = await backend.retrieve("job-1")
        await backend.download(batch, batch.files[0], local)

    mistral.run(use, max_retries=0)
    return [json.loads(line) for line in local.read_bytes().splitlines()]


def test_results_that_hang_on_the_job_are_read_row_by_row(mistral: Scripted, tmp_path: Path) -> None:
    assert fetched(mistral, tmp_path / "out", outputs(4)) == ROWS
    assert mistral.last.path == "/v1/batch/jobs/job-1?inline=true"


def test_fewer_results_than_the_job_counts_are_believed_only_when_said_three_times(
    mistral: Scripted, tmp_path: Path
) -> None:
    assert fetched(mistral, tmp_path / "out", *[outputs(3)] * 3) == ROWS[:3]
    assert fetched(mistral, tmp_path / "out", outputs(2), outputs(2), outputs(4)) == ROWS
    with pytest.raises(TransferError):
        fetched(mistral, tmp_path / "short", *map(outputs, (1, 2, 3, 1, 2)))
    assert not (tmp_path / "short").exists()


def test_results_that_are_not_there_yet_are_not_missing_rows(mistral: Scripted, tmp_path: Path) -> None:
    """Reads lag: none of the rows that the job counts is there."""
    for late in ({}, {"outputs": None}):
        with pytest.raises(NotFound, match="none of its 4 results"):
            fetched(mistral, tmp_path / "none", Reply(200, INLINE_DONE | late))
        assert not (tmp_path / "none").exists()
    assert fetched(mistral, tmp_path / "late", outputs(0), outputs(4)) == ROWS


def test_failed_rows_that_are_in_a_file_are_not_missed_among_the_results(
    mistral: Scripted, tmp_path: Path
) -> None:
    rows = fetched(mistral, tmp_path / "out", outputs(3), files={"error_file": "file-e"})
    assert rows == ROWS[:3] and len(mistral.server.received) == 2


def test_results_are_cut_off_in_the_middle_of_a_row(mistral: Scripted, tmp_path: Path) -> None:
    cut = json.dumps(INLINE_DONE | {"outputs": ROWS}).encode()[:-40]
    with pytest.raises(TransferError):
        fetched(mistral, tmp_path / "out", Reply(200, cut))


def test_what_was_read_is_deleted_but_for_the_job_that_shows_that_it_was_paid_for(mistral: Scripted) -> None:
    async def expire(backend: Any) -> bool:
        return bool(backend.files_expire)

    assert not mistral.run(expire)
    assert mistral.run(expire, inline=True)


def test_a_job_with_an_output_file_hangs_nothing_on_itself(mistral: Scripted) -> None:
    assert shown(mistral, input_files=[], output_file="file-o").files == (ResultFile("output", "file-o"),)
    assert shown(mistral, input_files=[], status="RUNNING").files == ()
    nothing = {"completed_requests": 0, "succeeded_requests": 0, "failed_requests": 0}
    assert shown(mistral, input_files=[], status="CANCELLED", **nothing).files == ()


def test_purging_deletes_files_and_jobs_that_have_ended(mistral: Scripted) -> None:
    file_id = shown(mistral, input_files=[]).files[0].file_id
    mistral.server.script = [Reply(200, DONE), Reply(200, {}), Reply(404), Reply(200, JOB), Reply(404)]
    for one in (file_id, "file-o", file_id, file_id):
        mistral.run(lambda backend, one=one: backend.delete_file(one))  # type: ignore[misc]
    deleted = [request.path for request in mistral.server.received if request.method == "DELETE"]
    assert deleted == ["/v1/batch/jobs/job-1", "/v1/files/file-o"]


# -- connections -----------------------------------------------------------------------------------
def test_the_window_is_a_number_of_hours_up_to_a_week() -> None:
    def window(written: str) -> float:
        options = {"completion_window": written}
        return make_backend("mistral", base_url=None, api_key="k", options=options).limits.window_seconds

    assert (window("24h"), window("7d"), window("168h")) == (86_400, 604_800, 604_800)
    for wrong in ("8d", "90m", "0h", "soon", "169h"):
        with pytest.raises(ConfigurationError, match="completion_window"):
            window(wrong)


def test_requests_that_go_along_are_fewer_and_a_connections_own_limit_holds() -> None:
    def limits(**options: Any) -> tuple[int, int]:
        found = make_backend("mistral", base_url=None, api_key="k", options=options).limits
        return found.max_requests, found.max_line_bytes

    assert limits(inline=True) == (9_999, 20_000_000)
    assert limits(inline=True, max_requests=5, max_bytes=700) == (5, 700)
    assert limits()[0] > 9_999


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_the_version(ending: str) -> None:
    backend = make_backend("mistral", base_url=f"https://api.mistral.ai{ending}", api_key="k", options={})
    assert backend.address == "api.mistral.ai/v1"


@pytest.mark.parametrize("page", [{}, {"detail": "x"}, {"message": "x", "total": 0}])
def test_a_reply_that_is_no_list_is_not_an_empty_one(page: Any, mistral: Scripted) -> None:
    """What it did not show would count as not there, and be sent again."""
    mistral.server.script = [Reply(200, page)] * 3
    with pytest.raises(Unreachable):
        mistral.run(lambda backend: backend.find("t1"))


def test_an_empty_list_may_lack_its_data(mistral: Scripted) -> None:
    mistral.server.script = [Reply(200, {"object": "list", "total": 0})]
    assert mistral.run(lambda backend: backend.find("t1")) == []
