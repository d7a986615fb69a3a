"""``batch-llm purge``: delete what jobs hold of requests and answers; what happened stays in the ledger."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.cli.exits import UNFINISHED, WRONG_STATE, Stopped, exit_status
from airflow_batch_llm.cli.parsers import actor_of, add_command
from airflow_batch_llm.cli.printing import print_json, when
from airflow_batch_llm.cli.session import Backends, open_workspace
from airflow_batch_llm.cli.target import find_job, open_target
from airflow_batch_llm.core.by_hand import Declined
from airflow_batch_llm.core.erase import Erasure, erase, find_rows
from airflow_batch_llm.core.model import Job, JobState
from airflow_batch_llm.core.purge import ALL, Purged, purge, refuse_unsettled, what_is_left
from airflow_batch_llm.core.retention import Part, done_parts, due_parts
from airflow_batch_llm.core.tools import read_description
from airflow_batch_llm.exceptions import WorkspaceError
from airflow_batch_llm.results.parquet import ParquetResults, drop_rows

if TYPE_CHECKING:
    from airflow_batch_llm.core.ports import Backend
    from airflow_batch_llm.storage.ledger import SqlLedger
    from airflow_batch_llm.storage.workspace import ObjectWorkspace

_AGE = re.compile(r"(\d+)([dhm])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``purge`` to the command line."""
    parser = add_command(
        subparsers,
        "purge",
        "delete what jobs hold of requests and answers",
        WRONG_STATE,
        UNFINISHED,
        job=False,
        decides=True,
        description="Delete rows, requests, answers, results, what providers said, answers kept for later "
        "jobs, and the provider's own files where they are still there. Ids, digests, verdicts, usage and "
        "the ledger's rows stay. Only jobs that have settled; a purged job is neither cleared nor re-driven.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--older-than", type=age, metavar="AGE", help="jobs that settled this long ago: 30d, 12h, 90m"
    )
    which.add_argument(
        "--job",
        metavar="JOB",
        help="one job: its id as batch-llm jobs prints it, or its first 6 or more characters",
    )
    which.add_argument(
        "--custom-id",
        action="append",
        metavar="CUSTOM_ID",
        help="one row in every job; may be given several times. Its custom id becomes a digest",
    )
    which.add_argument("--due", action="store_true", help="what each job's own Retention says is due")
    parser.add_argument("--dag", metavar="DAG_ID", help="only jobs of this DAG (not with --job)")
    parser.add_argument(
        "--keep-provider-files", action="store_true", help="leave the files at the provider alone"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --job: a halted job, too, which can then never go on"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and change nothing")
    return parser


def run(args: argparse.Namespace) -> int:
    """Purge and return the exit status."""
    return exit_status(_purge, args)


def age(text: str) -> float:
    """Read an age in seconds, for argparse."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError("must be a number of days, hours or minutes: 30d, 12h, 90m")
    return int(found[1]) * _SECONDS[found[2]]


@dataclass
class _Report:
    """What was done, for people and programs."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    passed_over: list[dict[str, str]] = field(default_factory=list)

    @property
    def unfinished(self) -> bool:
        return bool(self.passed_over) or any(job.get("failed") for job in self.jobs)


@dataclass(frozen=True)
class _Work:
    """What all ways of purging share."""

    args: argparse.Namespace
    ledger: SqlLedger
    workspace: ObjectWorkspace
    report: _Report

    @property
    def actor(self) -> str:
        return actor_of(self.args)

    def parts(self, parts: Collection[Part]) -> frozenset[Part]:
        """Return the parts without what is to be left alone."""
        return frozenset(parts) - ({Part.PROVIDER_FILES} if self.args.keep_provider_files else set())

    async def purge(self, job: Job, parts: Collection[Part], backend_of: Callable[[str], Backend]) -> None:
        """Purge parts of a job, or say what would go."""
        wanted = self.parts(parts)
        if not wanted - done_parts(job):
            return
        refuse_unsettled(self.ledger, job, force=self.args.force)
        if self.args.dry_run:
            done = what_is_left(self.ledger, self.workspace, job, wanted)
        else:
            done = await purge(
                self.ledger,
                self.workspace,
                job,
                wanted,
                actor=self.actor,
                reason=self.args.reason,
                backend_of=backend_of,
                force=self.args.force,
            )
        self.report.jobs.append({**_facts(job), **_told(done)})

    async def erase(
        self, job: Job, custom_ids: Collection[str], backend_of: Callable[[str], Backend]
    ) -> None:
        """Erase rows from a job that has any of them, or say that it has."""
        rows = find_rows(self.ledger, self.workspace, job, custom_ids)
        if not rows:
            return
        refuse_unsettled(self.ledger, job)
        erased = Erasure(rows=len(rows))
        if not self.args.dry_run:
            at_provider = None if self.args.keep_provider_files else backend_of
            erased = await erase(
                self.ledger,
                self.workspace,
                job,
                custom_ids,
                actor=self.actor,
                reason=self.args.reason,
                backend_of=at_provider,
                drop_rows={ParquetResults.suffix: drop_rows},
            )
        self.report.jobs.append({**_facts(job), "rows": erased.rows, "failed": erased.failed})


def _purge(args: argparse.Namespace) -> None:
    if args.force and not args.job:
        raise Stopped(2, "--force goes with --job only")
    if args.dag and args.job:
        raise Stopped(2, "--dag does not go with --job")
    ledger = open_target(args)
    work = _Work(args, ledger, open_workspace(), _Report())
    backends = Backends()
    if args.job:
        job = find_job(ledger, args.job)
        backends.run(lambda: work.purge(job, ALL, backends))
    else:
        backends.run(lambda: _all(work, backends))
    _print(args, work.report)
    if work.report.unfinished:
        raise Stopped(UNFINISHED, "not everything was purged: see above")


async def _all(work: _Work, backends: Backends) -> None:
    """Go through the jobs; one that cannot be purged does not stop the others."""
    for job in work.ledger.iter_jobs(dag_id=work.args.dag):
        try:
            if work.args.custom_id:
                await work.erase(job, work.args.custom_id, backends)
            elif parts := _due(work, job):
                await work.purge(job, parts, backends)
        except (Declined, WorkspaceError) as e:
            work.report.passed_over.append({**_facts(job), "why": str(e)})


def _due(work: _Work, job: Job) -> frozenset[Part]:
    """Return what is due of a job: by its own retention, or by the age that was given."""
    now = work.ledger.now()
    if job.state is JobState.STAGING and not work.workspace.list(work.workspace.job_root(job.key)):
        return frozenset()  # refused before anything was kept, or not begun: there is nothing of it
    if not work.args.due:
        since = job.settled_at if job.settled_at is not None else job.created_at
        return ALL if now - since >= work.args.older_than else frozenset()
    if job.state is not JobState.SETTLED or job.settled_at is None or job.plan_id is None:
        return frozenset()
    described = read_description(work.workspace, work.workspace.job_root(job.key), job.plan_id)
    return due_parts(described.get("retention"), now - job.settled_at)


def _facts(job: Job) -> dict[str, Any]:
    key = job.key
    return {
        "job_id": job.job_id,
        "dag_id": key.dag_id,
        "run_id": key.run_id,
        "task_id": key.task_id,
        "map_index": key.map_index if key.map_index >= 0 else None,
        "state": job.state.value,
        "settled_at": job.settled_at,
    }


def _told(purged: Purged) -> dict[str, Any]:
    return {
        "parts": sorted(part.value for part in purged.parts),
        "files": purged.files,
        "letters": purged.letters,
        "answers": purged.answers,
        "provider_files": purged.provider_files,
        "failed": purged.failed,
    }


def _print(args: argparse.Namespace, report: _Report) -> None:
    if args.json:
        print_json({"dry_run": args.dry_run, "jobs": report.jobs, "passed_over": report.passed_over})
        return
    would = "would be " if args.dry_run else ""
    for job in report.jobs:
        settled = when(job["settled_at"])
        where = f"job {job['job_id']} (task {job['task_id']}, settled {settled or 'never'})"
        if "rows" in job:
            print(f"{job['rows']} rows of {where} {would or 'were '}erased.")
        else:
            parts = ", ".join(job["parts"]) or "nothing"
            files = f"{job['files']} files in the workspace, {job['provider_files']} at the provider"
            print(f"{parts} of {where} {would or 'was '}purged: {files}.")
        for file_id, code in job["failed"].items():
            print(f"batch-llm: file {file_id} could not be deleted at the provider ({code})", file=sys.stderr)
    for job in report.passed_over:
        print(f"batch-llm: passed over: {job['why']}", file=sys.stderr)
    if not report.jobs and not report.passed_over:
        print("Nothing is to be purged.")
