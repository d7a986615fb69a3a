from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local_server import LocalServer
from tests.unit.server.api import Api


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("local-server")) as server:
        yield server


@pytest.fixture
def api(shared_server: LocalServer) -> Api:
    """A client of a server without faults, shared by the tests of this folder."""
    shared_server.set_scenario({})
    return Api(shared_server)
