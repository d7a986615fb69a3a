"""Each row of the OpenAI family: what is sent, and what its server was seen to say, over real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.backends import find_provider, make_backend
from airflow_batch_llm.backends.dialects import DIALECTS, window_seconds
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, ENDPOINTS, short_names
from airflow_batch_llm.core.ids import META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate, ResultFile
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    InDoubt,
    LinesRefused,
    RateLimited,
    Refused,
)
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply

ORDER = CreateOrder(RequestTemplate(CHAT, "m-1"), "file-in", {META_TOKEN: "a123"})
BATCH = {"id": "batch_1", "status": "in_progress", "created_at": 1_700_000_000}
ENDED = RemoteBatch("batch_1", RemoteStatus.DONE, "completed")


def made(name: str, **options: Any) -> Any:
    return make_backend(name, base_url="http://127.0.0.1:9/v1", api_key="key", options=options)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_row_sends_only_what_any_server_of_the_family_takes(bench: Bench, name: str) -> None:
    bench.server.script = [Reply(200, BATCH)]
    bench.run(lambda backend: backend.create(ORDER), name)
    (sent,) = bench.server.received
    body = sent.json
    assert (body["input_file_id"], body["endpoint"]) == ("file-in", CHAT)
    assert body["completion_window"] == "24h" and body["metadata"] == {META_TOKEN: "a123"}
    assert ("output_expires_after" in body) == (name == "openai")


@pytest.mark.parametrize("name", DIALECTS)
def test_an_endpoint_that_a_row_lacks_is_refused_by_name(name: str) -> None:
    row = DIALECTS[name]
    for endpoint in ENDPOINTS.values():
        if endpoint in row.endpoints:
            made(name).line_encoder(RequestTemplate(endpoint, "m-1"))
            continue
        with pytest.raises(Refused, match=short_names([endpoint])[0]) as told:
            made(name).line_encoder(RequestTemplate(endpoint, "m-1"))
        assert told.value.reason == "endpoint"


@pytest.mark.parametrize("name", DIALECTS)
def test_a_row_names_its_address_or_says_that_one_is_needed(name: str) -> None:
    provider = find_provider(name)
    assert provider.base_url or provider.example_url.startswith("http")
    if provider.base_url is None:
        with pytest.raises(ConfigurationError, match="base URL"):
            make_backend(name, base_url=None, api_key="key", options={})
    if provider.key_required:
        with pytest.raises(ConfigurationError, match="key"):
            make_backend(name, base_url="http://127.0.0.1:9/v1", api_key=" ", options={})


@pytest.mark.parametrize(
    ("name", "field"),
    [("openai", "max_completion_tokens"), ("groq", "max_completion_tokens"), ("morph", "max_tokens")],
)
def test_the_output_limit_has_the_name_that_the_server_knows(name: str, field: str) -> None:
    encode = made(name).line_encoder(RequestTemplate(CHAT, "m-1", {"max_tokens": 7}))
    body = json.loads(encode("w-1", b'{"messages":[]}'))["body"]
    assert body[field] == 7 and len({"max_tokens", "max_completion_tokens"} & body.keys()) == 1


# -- the window ------------------------------------------------------------------------------------
def test_a_window_that_the_server_leaves_open_is_the_connections(bench: Bench) -> None:
    bench.server.script = [Reply(200, BATCH)]
    bench.run(lambda backend: backend.create(ORDER), "groq", completion_window="7d")
    assert bench.server.received[0].json["completion_window"] == "7d"
    assert made("groq", completion_window="7d").limits.window_seconds == 7 * 86_400
    assert made("doubleword", completion_window="background").limits.window_seconds == 86_400


def test_a_window_that_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="24h"):
        made("deepinfra", completion_window="1h")


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("90m", 5_400.0), ("24h", 86_400.0), ("7d", 604_800.0), ("soon", None), ("", None)],
)
def test_windows_are_read(window: str, seconds: float | None) -> None:
    assert window_seconds(window) == seconds


# -- limits ----------------------------------------------------------------------------------------
def test_limits_are_those_of_the_provider() -> None:
    assert made("nebius").limits.max_requests == 5_000_000 and made("nebius").limits.max_inputs is None
    assert made("parasail").limits.max_bytes == 1_000_000_000
    assert made("openai").limits.creates_per_hour == 2_000
    assert made("alibaba").limits.max_line_bytes == 6_000_000
    assert {DIALECTS[name].limits.max_requests for name in ("groq", "deepinfra", "morph")} == {50_000}


# -- what servers were seen to say -----------------------------------------------------------------
def test_groq_shows_a_file_that_does_not_exist_as_an_object(bench: Bench) -> None:
    shown = {**BATCH, "status": "completed", "output_file_id": "file-out", "error_file_id": {}}
    bench.server.script = [Reply(200, shown)]
    batch = bench.run(lambda backend: backend.retrieve("batch_1"), "groq")
    assert batch.files == (ResultFile("output", "file-out"),)


def test_groq_says_403_where_the_plan_has_no_batches(bench: Bench) -> None:
    error = {"error": {"message": "no", "type": "invalid_request_error", "code": "not_available_for_plan"}}
    bench.server.script = [Reply(403, error)]
    with pytest.raises(AccountError):
        bench.run(lambda backend: backend.create(ORDER), "groq")


def test_deepinfra_counts_nothing_while_it_validates_and_names_the_line_that_failed(bench: Bench) -> None:
    errors = {"data": [{"code": "invalid_line", "message": "x", "line": 3}]}
    bench.server.script = [
        Reply(200, {**BATCH, "status": "validating", "request_counts": None}),
        Reply(200, {**BATCH, "status": "failed", "request_counts": None, "errors": errors}),
    ]
    first = bench.run(lambda backend: backend.retrieve("batch_1"), "deepinfra")
    assert first.status is RemoteStatus.PENDING and first.counts == {}
    second = bench.run(lambda backend: backend.retrieve("batch_1"), "deepinfra")
    assert second.status is RemoteStatus.FAILED
    assert [(error.code, error.line) for error in second.errors] == [("invalid_line", 3)]


@pytest.mark.parametrize(("code", "verdict"), [("400", Verdict.BAD_REQUEST), ("500", Verdict.SERVER_ERROR)])
def test_deepinfra_rows_that_failed_carry_the_status_as_a_code(code: str, verdict: Verdict) -> None:
    error = {"code": code, "message": "x", "param": None, "type": "error"}
    row = made("deepinfra").decode(json.dumps({"custom_id": "w", "response": None, "error": error}).encode())
    assert (row.wire_id, row.verdict) == ("w", verdict)


@pytest.mark.parametrize("detail", ["no", {"error": "no"}, [{"loc": ["body"], "msg": "no"}]])
def test_deepinfra_refuses_with_a_detail_of_any_form(bench: Bench, detail: Any) -> None:
    bench.server.script = [Reply(422, {"detail": detail})]
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.create(ORDER), "deepinfra")


def test_deepinfra_names_an_error_file_without_a_byte_in_it(bench: Bench, tmp_path: Path) -> None:
    bench.server.routes["GET /v1/files/file-err"] = Reply(200, {"id": "file-err", "bytes": 0})
    bench.server.routes["GET /v1/files/file-err/content"] = Reply(200, b"")
    batch = bench.run(lambda backend: fetched(backend, tmp_path / "errors.jsonl"), "deepinfra")
    assert batch == b""


async def fetched(backend: Any, local: Path) -> bytes:
    await backend.download(ENDED, ResultFile("error", "file-err"), local)
    return local.read_bytes()


def test_parasail_sends_content_from_another_host_and_says_401_in_plain_text(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.routes["GET /v1/files/file-err"] = Reply(200, {"id": "file-err", "bytes": 3})
    there = bench.server.base_url.replace("127.0.0.1", "localhost") + "/signed?token=1"
    bench.server.routes["GET /v1/files/file-err/content"] = Reply(302, b"", {"location": there})
    bench.server.routes["GET /v1/signed"] = Reply(200, b"{}\n")
    assert bench.run(lambda backend: fetched(backend, tmp_path / "rows.jsonl"), "parasail") == b"{}\n"
    (asked,) = bench.server.seen("GET", "/signed")
    assert "authorization" not in asked.headers
    bench.server.routes.clear()
    bench.server.script = [Reply(401, b"Unauthorized")]
    with pytest.raises(AuthError):
        bench.run(lambda backend: backend.probe(), "parasail")


def test_morph_lists_by_offset_and_says_nothing_of_a_next_page(bench: Bench) -> None:
    def page(*numbers: int) -> Reply:
        data = [{**BATCH, "id": f"batch_{n}", "metadata": {META_TOKEN: f"t{n}"}} for n in numbers]
        return Reply(200, {"object": "list", "data": data})

    bench.server.script = [page(5, 4, 3), page(2, 1), page()]
    found = bench.run(lambda backend: backend.find("t1"), "morph")
    assert [batch.id for batch in found] == ["batch_1"]
    assert ["after=" in call.path and call.path.split("after=")[1] for call in bench.server.received] == [
        False,
        "3",
        "5",
    ]


def test_morph_keeps_rows_that_failed_in_the_output_file() -> None:
    line = {
        "custom_id": "w",
        "response": {"status_code": 413, "body": {"error": {"message": "x"}}},
        "error": None,
    }
    assert made("morph").decode(json.dumps(line).encode()).verdict is Verdict.TOO_LARGE
    unanswered = {"custom_id": "w", "response": None, "error": {"code": "parse_error", "message": "x"}}
    assert made("morph").decode(json.dumps(unanswered).encode()).verdict is Verdict.BAD_REQUEST


@pytest.mark.parametrize("name", ["morph", "llm-d"])
def test_what_a_failed_batch_finished_can_be_read(bench: Bench, name: str) -> None:
    bench.server.script = [Reply(200, {**BATCH, "status": "failed", "output_file_id": "file-out"})]
    batch = bench.run(lambda backend: backend.retrieve("batch_1"), name)
    assert batch.status is RemoteStatus.FAILED and batch.files == (ResultFile("output", "file-out"),)


@pytest.mark.parametrize(
    ("status", "error"), [(402, AccountError), (429, RateLimited), (400, Refused)], ids=str
)
def test_doubleword_says_why_it_takes_no_batch(bench: Bench, status: int, error: type[Exception]) -> None:
    bench.server.script = [Reply(status, {"error": {"message": "x"}})] * 4
    with pytest.raises(error):
        bench.run(lambda backend: backend.create(ORDER), "doubleword")


def test_doubleword_refuses_a_file_with_a_bad_line_when_it_is_uploaded(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"{}\n")
    bench.server.script = [
        Reply(400, {"error": {"message": "line 1: no custom_id", "code": "invalid_request"}})
    ]
    with pytest.raises(LinesRefused) as told:
        bench.run(lambda backend: backend.upload(tmp_path / "in.jsonl", "in.jsonl"), "doubleword")
    assert told.value.lines == () and "custom_id" not in str(told.value)


def test_a_label_in_place_of_the_window_is_nobodys_fault(bench: Bench) -> None:
    bench.server.script = [
        Reply(200, {"id": "b", "status": "in_progress", "completion_window": "Standard (24h)"})
    ]
    assert bench.run(lambda b: b.retrieve("b"), "doubleword").status is RemoteStatus.RUNNING


def test_litellms_ids_are_long_and_opaque_and_go_into_the_path_as_they_are(bench: Bench) -> None:
    long = "bGl0ZWxsbV9wcm94eTttb2RlbF9pZDo" * 9 + "=="
    bench.server.script = [Reply(200, {**BATCH, "id": long})]
    assert bench.run(lambda backend: backend.retrieve(long), "litellm").id == long
    assert bench.server.received[0].path == f"/v1/batches/{long.replace('=', '%3D')}"


def test_aibrix_leaves_out_what_is_null_and_waits_for_a_place_to_run(bench: Bench) -> None:
    bench.server.script = [
        Reply(200, {"id": "0b2e", "status": "scheduling"}),
        Reply(408, {"detail": "timeout"}),
        Reply(409, {"detail": "finished"}),
        Reply(200, {"id": "0b2e", "status": "completed"}),
    ]
    assert bench.run(lambda backend: backend.retrieve("0b2e"), "aibrix").status is RemoteStatus.PENDING
    with pytest.raises(InDoubt):
        bench.run(lambda backend: backend.create(ORDER), "aibrix")
    assert bench.run(lambda backend: backend.cancel("0b2e"), "aibrix").status is RemoteStatus.DONE
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    row = made("aibrix").decode(
        json.dumps({"custom_id": "w", "response": {"status_code": 200, "body": body}}).encode()
    )
    assert (row.verdict, row.text) == (Verdict.OK, "hello")


def test_togethers_word_for_the_end_of_an_answer_is_one() -> None:
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "eos"}], "model": "m"}
    line = {"custom_id": "w", "response": {"status_code": 200, "body": body}}
    assert made("generic").decode(json.dumps(line).encode()).verdict is Verdict.OK


def test_vectors_are_made_where_the_row_says_so() -> None:
    assert {name for name, row in DIALECTS.items() if EMBEDDINGS not in row.endpoints} == {"groq", "morph"}
