"""The model's file: joined once, whole or not at all, checked; and nothing is imported unless asked for."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server import local_model_file
from airflow_batch_llm.server.local_model_file import join_pieces, model_file
from airflow_batch_llm.server.settings import ApiKey, LocalModelSettings, ServerSettings


@pytest.fixture
def pieces(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"piece-{i}" for i in range(3)]
    for i, path in enumerate(found):
        path.write_bytes(bytes([i]) * 1000)
    return found


def digest(pieces: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in pieces)).hexdigest()


def test_pieces_are_joined_in_order(pieces: list[Path], tmp_path: Path) -> None:
    join_pieces(pieces, tmp_path / "model", digest(pieces))
    assert (tmp_path / "model").read_bytes() == b"\0" * 1000 + b"\1" * 1000 + b"\2" * 1000


def test_pieces_of_another_model_leave_nothing(pieces: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="not this model"):
        join_pieces(pieces, folder / "model", "0" * 64)
    assert list(folder.iterdir()) == []


def test_a_file_that_was_spoiled_is_made_anew_and_a_good_one_is_left_alone(
    pieces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model_file, "SHA256", digest(pieces))
    monkeypatch.setattr(local_model_file, "_pieces", lambda: pieces)
    path = tmp_path / "cache" / local_model_file.FILE_NAME
    assert model_file(path.parent) == path
    made = path.stat().st_mtime_ns, path.stat().st_ino
    assert model_file(path.parent) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == made
    path.write_bytes(b"half")
    model_file(path.parent)
    assert path.stat().st_size == 3000


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model_file, "_PIECES", "a_package_that_nobody_has")
    with pytest.raises(ConfigurationError, match=r"airflow-batch-llm\[local\]"):
        model_file(tmp_path)


def test_an_upstream_and_a_local_model_are_one_too_many(tmp_path: Path) -> None:
    settings = ServerSettings(
        tmp_path, ApiKey("k", "--api-key"), upstream="http://box/v1", local_model=LocalModelSettings()
    )
    with pytest.raises(ConfigurationError, match="not to both"):
        settings.check()


def test_a_server_without_a_local_model_imports_nothing_of_it() -> None:
    program = (
        "import sys\n"
        "import airflow_batch_llm, airflow_batch_llm.cli.serve, airflow_batch_llm.server.serving\n"
        "print([name for name in sys.modules if 'llama' in name or 'gguf' in name or 'local_model' in name])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip().splitlines()[-1] == "[]"
