"""Batches as the provider shows them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.backends.gemini_objects import Operation, display_name, line_in, metadata_of
from airflow_batch_llm.core.ids import META_JOB, META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, ResultFile
from tests.unit.backends.gemini.conftest import operation

META = {META_TOKEN: "a" + "1" * 40, META_JOB: "2" * 32, META_ORIGIN: "3" * 32}
OUTPUT = (ResultFile("output", "batches/b1"),)


def shown(state: str = "BATCH_STATE_RUNNING", **changes: Any) -> RemoteBatch:
    return Operation.model_validate(operation(state, **changes)).normalised()


@pytest.mark.parametrize("prefix", ["BATCH_STATE_", "JOB_STATE_"])
@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("PENDING", RemoteStatus.PENDING),
        ("QUEUED", RemoteStatus.PENDING),
        ("RUNNING", RemoteStatus.RUNNING),
        ("CANCELLING", RemoteStatus.CANCELLING),
        ("SUCCEEDED", RemoteStatus.DONE),
        ("PARTIALLY_SUCCEEDED", RemoteStatus.DONE),
        ("FAILED", RemoteStatus.FAILED),
        ("CANCELLED", RemoteStatus.CANCELLED),
        ("EXPIRED", RemoteStatus.EXPIRED),
        ("OF_TOMORROW", RemoteStatus.UNKNOWN),
    ],
)
def test_states_of_either_prefix(prefix: str, state: str, status: RemoteStatus) -> None:
    assert shown(prefix + state).status is status
    assert shown(prefix + state).raw_status == prefix + state


def test_a_cancelled_batch_is_no_failed_one_although_it_bears_an_error() -> None:
    error = {"code": 13, "message": "the operation was cancelled"}
    assert shown("BATCH_STATE_CANCELLED", done=True, error=error).status is RemoteStatus.CANCELLED


@pytest.mark.parametrize("state", ["BATCH_STATE_OF_TOMORROW", "BATCH_STATE_UNSPECIFIED", ""])
def test_a_state_that_says_nothing_leaves_it_to_done(state: str) -> None:
    assert not shown(state).status.terminal
    assert shown(state, done=True, response={}).status is RemoteStatus.DONE
    assert shown(state, done=True, error={"code": 1}).status is RemoteStatus.CANCELLED
    assert shown(state, done=True, error={"code": 3}).status is RemoteStatus.FAILED


def test_a_batch_without_metadata_has_just_been_made() -> None:
    batch = Operation.model_validate({"name": "batches/b1"}).normalised()
    assert (batch.id, batch.status, batch.files, batch.metadata) == (
        "batches/b1",
        RemoteStatus.PENDING,
        (),
        {},
    )


def test_counts_are_strings_and_zeros_are_missing() -> None:
    stats = {"requestCount": "9", "successfulRequestCount": "7"}
    assert shown(metadata={"batchStats": stats}).counts == {"total": 9, "completed": 7, "failed": 0}
    assert shown(metadata={"batchStats": None}).counts == {"total": 0, "completed": 0, "failed": 0}
    numbers = {"requestCount": 9, "failedRequestCount": 2}
    assert shown(metadata={"batchStats": numbers}).counts == {"total": 9, "completed": 0, "failed": 2}


@pytest.mark.parametrize("state", ["EXPIRED", "CANCELLED", "FAILED"])
def test_answers_that_will_never_be_shown_are_not_counted(state: str) -> None:
    metadata = {"batchStats": {"requestCount": "9", "successfulRequestCount": "4", "failedRequestCount": "1"}}
    bare = shown(f"BATCH_STATE_{state}", metadata=metadata)
    assert bare.counts == {"total": 9, "completed": 0, "failed": 1}
    held = shown(f"BATCH_STATE_{state}", metadata=metadata, response={"responsesFile": "files/x"})
    assert held.counts["completed"] == 4
    assert shown("BATCH_STATE_SUCCEEDED", metadata=metadata).counts["completed"] == 4


ROWS = [{"metadata": {"key": "a"}, "response": {}}]


@pytest.mark.parametrize(
    "changes",
    [
        {"response": {"responsesFile": "files/batch-b1"}},
        {"metadata": {"output": {"responsesFile": "files/batch-b1"}}},
        {"response": {"inlinedResponses": {"inlinedResponses": ROWS}}},
        {"metadata": {"output": {"inlinedResponses": {"inlinedResponses": ROWS}}}},
        {"response": {"inlinedEmbedContentResponses": {"inlinedResponses": ROWS}}},
    ],
)
def test_results_in_either_place_hang_on_the_batch(changes: dict[str, Any]) -> None:
    found = Operation.model_validate(operation("BATCH_STATE_SUCCEEDED", **changes))
    assert found.normalised().files == OUTPUT
    assert (found.responses_file(), found.inlined()) in (("files/batch-b1", None), (None, ROWS))
    assert shown("BATCH_STATE_EXPIRED", **changes).files == OUTPUT, "read in every state that has them"


@pytest.mark.parametrize("output", [{}, None, {"responsesFile": ""}, {"inlinedResponses": {}}, "files/x"])
def test_a_handle_of_nothing_is_none(output: Any) -> None:
    assert shown("BATCH_STATE_SUCCEEDED", response=output, metadata={"output": output}).files == ()


def test_the_name_carries_token_job_and_origin() -> None:
    assert metadata_of(display_name(META)) == META
    assert shown(metadata={"displayName": display_name(META)}).metadata == META
    for other in ("nightly", "batch-llm a b", "", "batch-llm  a b c", "my batch-llm a b c"):
        assert metadata_of(other) == {}


def test_times_and_the_upload_are_read() -> None:
    batch = shown(metadata={"inputConfig": {"fileName": "files/in"}})
    assert batch.created_at == pytest.approx(1795946400.123456)
    assert batch.input_file_id == "files/in"
    assert shown(metadata={"createTime": "soon", "inputConfig": {"requests": {}}}).input_file_id is None


def test_a_quota_that_ran_out_is_a_full_queue() -> None:
    (error,) = shown("BATCH_STATE_FAILED", done=True, error={"code": 8, "message": "quota"}).errors
    assert error.code == "queue_full"


def test_an_upload_that_was_gone_is_told_by_its_name() -> None:
    source = {"inputConfig": {"fileName": "files/in"}}
    gone = {"code": 5, "message": "files/in was not found"}
    (error,) = shown("BATCH_STATE_FAILED", done=True, error=gone, metadata=source).errors
    assert (error.code, error.param) == ("NOT_FOUND", "input_file_id")
    (error,) = shown(
        "BATCH_STATE_FAILED", done=True, error={"code": 5, "message": "x"}, metadata=source
    ).errors
    assert error.param is None


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Invalid value at 'batch.input_config.requests.requests[3].request.contents'", 4),
        ("requests[0]: bad", 1),
        ("Failed to parse line 7: unexpected token", 7),
        ("error on line: 12", 12),
        ("Line number 2 is malformed", 2),
        ("unexpected token at line 1 column 20", None),
        ("unexpected token at line 1, column 20", None),
        ("line 0 is malformed", None),
        ("deadline 5 exceeded", None),
        ("Request contains an invalid argument.", None),
    ],
)
def test_the_line_that_a_message_names(message: str, line: int | None) -> None:
    assert line_in(message) == line
