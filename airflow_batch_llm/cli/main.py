"""The ``batch-llm`` command: finds the subcommand, runs it, turns our errors into one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from airflow_batch_llm import __version__
from airflow_batch_llm.exceptions import BatchLLMError
from airflow_batch_llm.process_context import outside_of_tasks

#: Subcommand -> (module, line in the help). A module is imported only when its subcommand is used.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("airflow_batch_llm.cli.serve", "run the local batch server"),
    "db": ("airflow_batch_llm.cli.db", "create, migrate and check the ledger's tables"),
    "providers": (
        "airflow_batch_llm.cli.providers",
        "list the providers: limits, capabilities, what was tested",
    ),
    "doctor": ("airflow_batch_llm.cli.doctor", "check everything that a job needs"),
    "jobs": ("airflow_batch_llm.cli.jobs", "list the jobs of the ledger"),
    "show": ("airflow_batch_llm.cli.show", "show a job with its batches and counts"),
    "metrics": ("airflow_batch_llm.cli.metrics", "print the ledger's gauges"),
    "events": ("airflow_batch_llm.cli.events", "list what happened to a job, in order"),
    "resume": ("airflow_batch_llm.cli.resume", "let a halted job go on"),
    "cancel": ("airflow_batch_llm.cli.cancel", "halt a job and cancel its batches"),
    "adopt": ("airflow_batch_llm.cli.adopt", "say which batch at the provider one of ours is"),
    "abandon": ("airflow_batch_llm.cli.abandon", "give a batch up: its rows are sent again"),
    "hand-in": ("airflow_batch_llm.cli.hand_in", "bring results of a batch that cannot be fetched"),
    "accept": ("airflow_batch_llm.cli.accept", "take a job as it is"),
    "holds": ("airflow_batch_llm.cli.holds", "list the connections that are held"),
    "hold": ("airflow_batch_llm.cli.hold", "send nothing with a connection until it is released"),
    "release": ("airflow_batch_llm.cli.release", "let a held connection send again"),
    "purge": ("airflow_batch_llm.cli.purge", "delete what jobs hold of requests and answers"),
    "dead-letters": ("airflow_batch_llm.cli.letters", "look at rows that failed for good, decide about them"),
}

#: As the shell says it of a command that SIGPIPE ended.
_BROKEN_PIPE = 141


class _Subparsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...


class _Command(Protocol):
    """A module of a subcommand: declares its arguments, runs them, returns the exit status."""

    add_parser: Callable[[_Subparsers], object]
    run: Callable[[argparse.Namespace], int | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``batch-llm`` and return the exit status: 2 for our errors and for wrong arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser, commands = build_parser(name)
    args = parser.parse_args(arguments)
    try:
        with outside_of_tasks():
            status = commands[args.command].run(args) or 0
            sys.stdout.flush()
            return status
    except BatchLLMError as error:
        print(f"batch-llm: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever reads has seen enough (| head). What is left to write must not fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return 130


def build_parser(only: str | None = None) -> tuple[argparse.ArgumentParser, dict[str, _Command]]:
    """Return the parser and the loaded subcommands.

    :param only: load this subcommand's arguments and leave the others as names in the help; None
        (no subcommand on the line: help, ``--version``, a mistake) loads none.
    """
    parser = argparse.ArgumentParser(prog="batch-llm", description="Tools of airflow-batch-llm.")
    parser.add_argument("--version", action="version", version=f"airflow-batch-llm {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    loaded: dict[str, _Command] = {}
    for name, (module, summary) in COMMANDS.items():
        if name == only:
            loaded[name] = cast(_Command, importlib.import_module(module))
            loaded[name].add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser, loaded


if __name__ == "__main__":
    sys.exit(main())
