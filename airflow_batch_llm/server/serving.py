"""Runs the server until it is told to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.app import build_app
from airflow_batch_llm.server.gate import DroppableProtocol
from airflow_batch_llm.server.protocols import dialects
from airflow_batch_llm.server.services import open_services
from airflow_batch_llm.server.settings import ServerSettings


def serve(settings: ServerSettings) -> None:
    """Listen and serve until SIGTERM or SIGINT; prints one line when ready.

    :raises ConfigurationError: the address, the folder or the scenario cannot be used.
    """
    settings.check()
    services = open_services(settings, dialects())
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    shown = (
        f"key {settings.key.source}: {settings.key.value}"
        if not settings.key.explicit
        else (f"key from {settings.key.source}")
    )
    config = uvicorn.Config(
        build_app(services, key=settings.key.value),
        http=DroppableProtocol,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    _Server(config, ready=f"batch-llm serve: {address} ({shown})").run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as e:
        raise ConfigurationError(f"cannot listen on {host}:{port} ({e.strerror})") from e
    return listener


class _Server(uvicorn.Server):
    """Says when it is ready, and ends with status 0 when it was asked to end."""

    def __init__(self, config: uvicorn.Config, *, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._ready, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; uvicorn would raise it again afterwards, and the process would die by it."""
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
