"""``batch-llm serve``: run the local batch server."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.server.settings import (
    KEY_VARIABLE,
    UPSTREAM_KEY_VARIABLE,
    LocalModelSettings,
    ServerLimits,
    ServerSettings,
    resolve_key,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

#: What ``--local-model`` without a file stands for.
_BUNDLED = Path("gemma3-270m")

DESCRIPTION = (
    "Serve OpenAI files and batches on this machine, answered by a simulated model, a small real one, or "
    "another server."
)


def add_parser(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``serve``."""
    parser = subparsers.add_parser("serve", help="run the local batch server", description=DESCRIPTION)
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``serve``."""
    limits = ServerLimits()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8765, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--dir", type=Path, default=Path(".batch-llm-server"), help="folder for all state")
    parser.add_argument(
        "--api-key", help=f"key that clients must send (default: {KEY_VARIABLE}, else a fresh one is printed)"
    )
    parser.add_argument("--scenario", type=Path, help="JSON file with faults (docs/local_server.md)")
    parser.add_argument(
        "--max-requests", type=_positive, default=limits.max_requests, help="lines in one batch"
    )
    parser.add_argument("--max-bytes", type=_positive, default=limits.max_bytes, help="bytes of one upload")
    parser.add_argument(
        "--upstream",
        help=f"forward to this OpenAI-compatible base URL, http://…/v1 (key: {UPSTREAM_KEY_VARIABLE})",
    )
    parser.add_argument("--upstream-concurrency", type=_positive, default=8, help="requests there at once")
    parser.add_argument(
        "--upstream-timeout", type=_positive, default=600, help="seconds for one request there"
    )
    local = LocalModelSettings()
    parser.add_argument(
        "--local-model",
        nargs="?",
        type=Path,
        const=_BUNDLED,
        metavar="GGUF",
        help="answer with llama.cpp in this process: Gemma 3 270M (extra `local`), or this file",
    )
    parser.add_argument(
        "--local-parallel", type=_positive, default=local.parallel, help="requests there at once"
    )
    parser.add_argument(
        "--local-context", type=_positive, default=local.context, help="tokens of one request there"
    )
    parser.add_argument("--local-threads", type=_positive, help="its threads (default: all cores but one)")


def run(args: Namespace) -> int:
    """Serve until told to stop. Returns 0, or 2 where it cannot start."""
    from airflow_batch_llm.server.serving import serve  # uvicorn and Starlette: only where they are needed

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = ServerSettings(
            folder=args.dir,
            key=resolve_key(args.api_key),
            host=args.host,
            port=args.port,
            limits=ServerLimits(args.max_requests, args.max_bytes),
            scenario=args.scenario,
            upstream=args.upstream,
            upstream_concurrency=args.upstream_concurrency,
            upstream_timeout=args.upstream_timeout,
            local_model=_local_model(args),
        )
        serve(settings)
    except ConfigurationError as e:
        print(f"batch-llm serve: {e}", file=sys.stderr)
        return 2
    return 0


def _local_model(args: Namespace) -> LocalModelSettings | None:
    if args.local_model is None:
        return None
    file = None if args.local_model is _BUNDLED else args.local_model
    return LocalModelSettings(file, args.local_parallel, args.local_context, args.local_threads)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError("a port is from 0 to 65535")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
