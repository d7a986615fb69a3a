"""Installs the peers, each into a virtual environment of its own: ``python -m tests.peers.install [FOLDER]``.

Versions stand in ``pins/<peer>.txt`` and nowhere else. An environment is made anew when its pins or its
Python have changed; otherwise nothing happens. Needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).resolve().parent / "pins"
#: Environment variable that names a Python to use where it fits a peer.
CHOICE = "PEER_PYTHON"
_STAMP = ".made-for"

Version = tuple[int, int]


@dataclass(frozen=True)
class Peer:
    """A server and the Python it needs.

    :param name: of the package, and of its environment's folder.
    :param least: oldest Python it runs on.
    :param below: first Python that it does not run on.
    :param program: what its environment must hold afterwards.
    """

    name: str
    least: Version
    below: Version
    program: str

    @property
    def pins(self) -> Path:
        """The versions of the package and of all that it needs."""
        return PINS / f"{self.name}.txt"

    def program_in(self, folder: Path) -> Path:
        """Return the program in an environment below ``folder``."""
        return folder / self.name / "bin" / self.program


PEERS = {
    peer.name: peer
    for peer in (
        Peer("ogx", (3, 12), (3, 15), "ogx"),
        Peer("llmock", (3, 10), (3, 15), "llmock"),
        Peer("aibrix", (3, 10), (3, 13), "aibrix_metadata"),
    )
}


class CannotInstall(Exception):
    """A peer that cannot be had here; the message says why and what to do."""


def install(peer: Peer, folder: Path) -> None:
    """Make the peer's environment below ``folder`` unless it is there already.

    :raises CannotInstall: no Python fits it, or pip failed.
    """
    python = _python_for(peer)
    wanted = hashlib.sha256(peer.pins.read_bytes() + python.encode() + _version(python).encode()).hexdigest()
    place = folder / peer.name
    stamp = place / _STAMP
    if stamp.exists() and stamp.read_text() == wanted and peer.program_in(folder).exists():
        return
    print(f"Installing {_pinned(peer)} into {place} with Python {_version(python)} ...", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    _run(peer, [python, "-m", "venv", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    _run(peer, [*pip, "--requirement", str(peer.pins)])
    if not peer.program_in(folder).exists():
        raise CannotInstall(f"{peer.name}: {_pinned(peer)} has no program {peer.program!r}")
    stamp.write_text(wanted)


def _pinned(peer: Peer) -> str:
    (line,) = [x for x in peer.pins.read_text().splitlines() if x.startswith(f"{peer.name}==")]
    return line


def _run(peer: Peer, command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise CannotInstall(f"{peer.name}: {' '.join(command)} failed with {done.returncode}:\n{last}")


def _python_for(peer: Peer) -> str:
    """Return the newest Python that fits, or the one that the caller named if it does."""
    chosen = os.environ.get(CHOICE)
    fits, others = [], []
    for python in dict.fromkeys([chosen] if chosen and _fits(peer, chosen) else _pythons()):
        (fits if _fits(peer, python) else others).append(python)
    if not fits:
        seen = ", ".join(sorted({_version(python) for python in others})) or "none"
        least, below = (".".join(map(str, version)) for version in (peer.least, peer.below))
        raise CannotInstall(
            f"{peer.name}: needs Python {least} or newer, below {below}; found: {seen}. Install one, or name "
            f"it: make test-peers {CHOICE}=/path/to/python{least}"
        )
    return max(fits, key=lambda python: [int(part) for part in _version(python).split(".")[:2]])


def _pythons() -> Iterator[str]:
    """Yield every Python that is easily found: on the path, and pyenv's."""
    yield sys.executable
    for name in ("python3", *(f"python3.{minor}" for minor in range(10, 15))):
        if found := shutil.which(name):
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/3.*/bin/python")))


def _fits(peer: Peer, python: str) -> bool:
    version = _version(python)
    return bool(version) and peer.least <= tuple(map(int, version.split(".")[:2])) < peer.below


def _version(python: str) -> str:
    """Return the version as text, empty where it does not run or cannot make environments."""
    ask = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))"
    try:
        return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main(arguments: list[str]) -> int:
    """Install all peers; every one that cannot be had is told, and the exit status is 1."""
    folder = Path(arguments[0]).resolve() if arguments else ROOT / ".peers"
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for peer in PEERS.values():
        try:
            install(peer, folder)
        except CannotInstall as error:
            print(f"A peer cannot be installed here. {error}", file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
