from __future__ import annotations

import hashlib
import os
import resource
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_mock import MockerFixture
from upath import UPath

from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.exceptions import WorkspaceError
from airflow_batch_llm.storage.workspace import ObjectWorkspace, quote_part


@pytest.fixture(params=["path", "file", "memory"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectWorkspace]:
    base = {
        "path": tmp_path / "w s%20",
        "file": UPath(f"file://{tmp_path}/base"),
        "memory": UPath(f"memory://{uuid.uuid4().hex}/base"),
    }[request.param]
    yield ObjectWorkspace(base)
    if request.param == "memory":
        with suppress(FileNotFoundError):
            base.fs.rm(base.path.rpartition("/")[0], recursive=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_was_written_is_read_back_with_its_size_and_digest(workspace: ObjectWorkspace) -> None:
    data = b'{"a":1}\n' * 1000
    with workspace.writer("a/b/rows.jsonl") as file:
        for _ in range(1000):
            file.write(b'{"a":1}\n')
        assert not workspace.exists("a/b/rows.jsonl")
    assert (file.size, file.sha256) == (len(data), _digest(data))
    with workspace.open("a/b/rows.jsonl") as read:
        assert read.read() == data
    with workspace.open_checked("a/b/rows.jsonl", len(data), _digest(data)) as read:
        assert list(read) == [b'{"a":1}\n'] * 1000


def test_a_write_that_raises_leaves_nothing_behind(workspace: ObjectWorkspace, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    with pytest.raises(Stop), workspace.writer("a/rows.jsonl") as file:
        file.write(b"half")
        raise Stop
    assert not workspace.exists("a/rows.jsonl")
    assert workspace.list("a") == []
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_write_that_raises_keeps_the_file_that_was_there(workspace: ObjectWorkspace) -> None:
    workspace.put("a/rows.jsonl", b"whole")
    with pytest.raises(ZeroDivisionError), workspace.writer("a/rows.jsonl") as file:
        file.write(b"ha")
        1 / 0  # noqa: B018
    with workspace.open("a/rows.jsonl") as read:
        assert read.read() == b"whole"


@pytest.mark.parametrize("size", [100, 3 << 20], ids=["on closing", "on writing"])
def test_a_disk_that_takes_no_more_is_an_error_of_ours_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    workspace = ObjectWorkspace(tmp_path)
    (tmp_path / "a").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(WorkspaceError, match="a/x cannot be written"):
            workspace.put("a/x", b"x" * size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "a").iterdir()) == []


def test_an_error_of_the_writer_itself_is_not_taken_for_one_of_the_workspace(
    workspace: ObjectWorkspace,
) -> None:
    with pytest.raises(TimeoutError), workspace.writer("x"):
        raise TimeoutError("from the source")


def test_writing_again_replaces_the_whole_file(workspace: ObjectWorkspace) -> None:
    workspace.put("x", b"long long long")
    info = workspace.put("x", b"short")
    assert (info.size, info.sha256) == (5, _digest(b"short"))
    with workspace.open("x") as read:
        assert read.read() == b"short"


def test_a_local_file_is_copied_whole(workspace: ObjectWorkspace, tmp_path: Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(os.urandom(3_000_000))
    info = workspace.put_file("raw/x", local)
    assert (info.size, info.sha256) == (3_000_000, _digest(local.read_bytes()))
    with workspace.open("raw/x") as read:
        assert read.read() == local.read_bytes()


def test_an_empty_file_is_a_file(workspace: ObjectWorkspace) -> None:
    info = workspace.put("x", b"")
    assert workspace.exists("x")
    with workspace.open_checked("x", info.size, info.sha256) as read:
        assert read.read() == b""


def test_a_file_that_is_not_there_cannot_be_opened(workspace: ObjectWorkspace) -> None:
    workspace.put("folder/x", b"1")
    for path in ("no", "folder/no", "folder"):
        assert not workspace.exists(path)
        with pytest.raises(WorkspaceError, match="does not exist"), workspace.open(path):
            pass


def test_another_size_is_refused_on_opening(workspace: ObjectWorkspace) -> None:
    workspace.put("x", b"12345")
    with pytest.raises(WorkspaceError, match="5 bytes"), workspace.open_checked("x", 6, _digest(b"12345")):
        pass


@pytest.mark.parametrize("step", [1, 7, 1 << 16, -1])
def test_another_digest_is_refused_by_the_read_that_reaches_the_end(
    workspace: ObjectWorkspace, step: int
) -> None:
    data = b"x" * 5000
    workspace.put("x", data)
    with (
        pytest.raises(WorkspaceError, match="SHA-256"),
        workspace.open_checked("x", 5000, _digest(b"y" * 5000)) as read,
    ):
        while read.read(step):
            pass


def test_the_last_bytes_of_a_changed_file_are_never_handed_out(workspace: ObjectWorkspace) -> None:
    size = 5 << 20
    workspace.put("x", b"x" * size)
    taken = 0
    with pytest.raises(WorkspaceError), workspace.open_checked("x", size, _digest(b"y")) as read:
        while block := read.read(1 << 20):
            taken += len(block)
    assert 0 < taken < size


def test_who_stops_reading_early_is_told_nothing(workspace: ObjectWorkspace) -> None:
    size = 5 << 20
    workspace.put("x", b"x" * size)
    with workspace.open_checked("x", size, _digest(b"y")) as read:
        assert read.read(10) == b"x" * 10


def test_a_folder_lists_all_files_below_it_sorted(workspace: ObjectWorkspace) -> None:
    for path in ("a/2", "a/1", "a/b/3", "ab/4"):
        workspace.put(path, b"")
    assert workspace.list("a") == ["a/1", "a/2", "a/b/3"]
    assert workspace.list("none") == []


def test_a_file_being_written_is_in_no_listing(workspace: ObjectWorkspace) -> None:
    with workspace.writer("a/x") as file:
        file.write(b"1")
        assert workspace.list("a") == []
    assert workspace.list("a") == ["a/x"]


def test_a_folder_is_deleted_with_all_below_and_nothing_beside(workspace: ObjectWorkspace) -> None:
    for path in ("a/1", "a/b/2", "ab/3"):
        workspace.put(path, b"")
    workspace.delete_tree("a")
    workspace.delete_tree("a")
    assert workspace.list("a") == []
    assert workspace.exists("ab/3")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "./x", "a\x00", "..\\x"])
def test_a_path_that_leaves_the_base_is_refused(workspace: ObjectWorkspace, path: str) -> None:
    with pytest.raises(WorkspaceError):
        workspace.put(path, b"")
    with pytest.raises(WorkspaceError):
        workspace.delete_tree(path)


def test_written_files_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        ObjectWorkspace(tmp_path).put("x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644


def test_an_object_store_is_sent_each_file_in_one_put(mocker: MockerFixture) -> None:
    base = UPath(f"memory://{uuid.uuid4().hex}/base")
    put = mocker.spy(base.fs, "put_file")
    with ObjectWorkspace(base).writer("a/x") as file:
        for _ in range(10):
            file.write(b"12345")
    assert put.call_count == 1
    assert base.joinpath("a/x").read_bytes() == b"12345" * 10


def test_a_store_that_fails_is_not_taken_for_an_absent_file(mocker: MockerFixture) -> None:
    base = UPath(f"memory://{uuid.uuid4().hex}/base")
    workspace = ObjectWorkspace(base)
    mocker.patch.object(base.fs, "info", side_effect=ConnectionResetError)
    with pytest.raises(ConnectionResetError):
        workspace.exists("job.json")


def test_the_url_is_the_base_and_the_path(tmp_path: Path) -> None:
    assert ObjectWorkspace(tmp_path).url("a/b") == f"{tmp_path}/a/b"
    assert ObjectWorkspace(UPath("memory://bucket/base/")).url("a") == "memory://bucket/base/a"


# -- the job's folder ------------------------------------------------------------------------------
def _root(key: JobKey) -> str:
    return ObjectWorkspace(Path("/nowhere")).job_root(key)


def test_the_folder_of_a_usual_job_can_be_read() -> None:
    key = JobKey("abc123abc123", "nightly", "scheduled__2026-01-02T02:00:00+00:00", "group.submit")
    expected = "abc123abc123/nightly/scheduled__2026-01-02T02%3A00%3A00%2B00%3A00/group.submit/-1"
    assert _root(key) == expected


_PARTS = st.text(
    st.sampled_from("aA.~%/\\:+ é\u0301\x00-_2E") | st.characters(blacklist_categories=["Cs"]), max_size=300
)
_KEYS = st.builds(JobKey, _PARTS, _PARTS, _PARTS, _PARTS, st.integers(-1, 10**6))


@given(_KEYS)
def test_each_part_of_the_key_is_one_safe_path_part(key: JobKey) -> None:
    parts = _root(key).split("/")
    assert len(parts) == 5
    for part in parts:
        assert 0 < len(part.encode()) <= 255
        assert set(part) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.%~")
        assert not part.startswith(".")
        assert ".." not in part


@given(_KEYS, _KEYS)
def test_two_jobs_never_share_a_folder(one: JobKey, other: JobKey) -> None:
    assert (_root(one) == _root(other)) == (one == other)


@given(st.text(st.sampled_from("a.~%2E/7"), max_size=8), st.text(st.sampled_from("a.~%2E/7"), max_size=8))
def test_quoting_keeps_look_alikes_apart(one: str, other: str) -> None:
    assert (quote_part(one) == quote_part(other)) == (one == other)


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    one, other = "é" * 240 + "1", "é" * 240 + "2"
    assert quote_part(one) != quote_part(other)
    assert len(quote_part(one)) <= 255
    shortened = quote_part(one)
    assert quote_part(shortened) != shortened
