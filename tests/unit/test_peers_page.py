"""The page of peers names the versions that are installed, and the pins are plain."""

from __future__ import annotations

import re
from pathlib import Path

from tests.peers.install import PEERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "peers.md").read_text()


def test_the_page_names_each_peers_version_as_it_is_pinned() -> None:
    named = dict(re.findall(r"`(\w+)==([\w.]+)`", PAGE))
    pinned = {
        name: dict(line.split("==") for line in peer.pins.read_text().split()) for name, peer in PEERS.items()
    }
    assert named == {name: pins[name] for name, pins in pinned.items()}


def test_pins_are_names_and_versions_and_nothing_else() -> None:
    for peer in PEERS.values():
        lines = peer.pins.read_text().splitlines()
        assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines)
        assert len({line.split("==")[0].lower() for line in lines}) == len(lines)


def test_peers_are_no_part_of_the_test_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (rule,) = re.findall(r"^test: .*(?:\n\t.*)+", makefile, re.M)
    folders = set(
        re.findall(r"tests/\w+", rule + makefile[makefile.index("ENGINE_TESTS :=") :].split("\n")[0])
    )
    assert folders == {"tests/unit", "tests/integration", "tests/e2e"}
