"""Azure's backend before a scripted server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.backends.calls import Scripted
from tests.unit.backends.scripted_server import ScriptedServer


@pytest.fixture
def azure() -> Iterator[Scripted]:
    with ScriptedServer() as server:
        yield Scripted("azure", server, server.base_url.removesuffix("/v1"))
