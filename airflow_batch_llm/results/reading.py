"""``read_results``: the answers of a job, from a notebook or a task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.jsonl import iter_lines, loads, read_chunks
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.publish import read_manifest
from airflow_batch_llm.exceptions import ConfigurationError, ResultsError
from airflow_batch_llm.results.dead import dead_rows
from airflow_batch_llm.results.finding import Place, find_results, open_books
from airflow_batch_llm.schemas import described_schema
from airflow_batch_llm.sinks.kinds import object_kinds

if TYPE_CHECKING:
    import pandas
    import pyarrow

_answers = msgspec.json.Decoder(Answer)
#: What ``verdict`` and ``code`` say of answered rows.
OK = "ok"


class Results(Iterator[dict[str, Any]]):
    """The rows of a job's results: iterate over it, once; or take all of it as a table.

    A row is a plain dict: ``custom_id``, ``output``, ``key`` (the source's key columns), ``carry`` (carried
    ones), ``model``, ``usage`` (tokens), ``finish_reason``, ``round``, ``origin`` and ``wire_id``; with dead
    rows also ``verdict`` and ``code``. Memory does not grow with the number of rows that are iterated over.

    Size and digest of every file are checked against the manifest: a file that differs ends the iteration
    with an error.
    """

    def __init__(self, place: Place, manifest: Mapping[str, Any], *, dead: bool) -> None:
        #: What ``_manifest.json`` says: job, revision, rows, usage, parts.
        self.manifest = dict(manifest)
        #: The folder's address.
        self.url = place.url
        self._place, self._dead = place, dead
        self._iterator: Iterator[dict[str, Any]] | None = None

    def __next__(self) -> dict[str, Any]:
        if self._iterator is None:
            self._iterator = self._rows()
        return next(self._iterator)

    def to_arrow(self) -> pyarrow.Table:
        """Return all rows as a pyarrow table, with the columns of a Parquet file; in memory as a whole.

        :raises ConfigurationError: pyarrow is not installed.
        """
        from airflow_batch_llm.results.layout import layout_of
        from airflow_batch_llm.results.parquet import arrow_table, load_pyarrow

        pa = load_pyarrow("to_arrow()")
        rows = list(self._dead_rows())
        dead = [Answer(**{name: row[name] for name in Answer.__struct_fields__}) for row in rows]
        columns = layout_of(itertools.chain(self.answers(), dead), self._properties()).columns()
        table = arrow_table(itertools.chain(self.answers(), dead), columns)
        if self._dead:
            answered = table.num_rows - len(rows)
            for name in ("verdict", "code"):
                values = [OK] * answered + [row[name] for row in rows]
                table = table.append_column(name, pa.array(values, pa.string()))
        return table

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas data frame, with the columns of a Parquet file.

        :raises ConfigurationError: pandas or pyarrow is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "to_pandas() needs pandas, which is not installed here: pip install pandas"
            ) from None
        return self.to_arrow().to_pandas()

    def answers(self) -> Iterator[Answer]:
        """Yield the answers as they stand in the files, from the beginning; dead rows are not among them.

        :raises WorkspaceError: a file is not what the manifest says.
        """
        workspace, folder = self._place.workspace, self._place.folder
        for part in self.manifest["parts"]:
            path = f"{folder}/{part['path']}"
            with workspace.open_checked(path, part["bytes"], part["sha256"]) as file:
                for _, line in iter_lines(read_chunks(file)):
                    yield _answers.decode(line)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for answer in self.answers():
            row = msgspec.structs.asdict(answer)
            if self._dead:
                row |= {"verdict": OK, "code": OK}
            yield row
        yield from self._dead_rows()

    def _properties(self) -> Mapping[str, str] | None:
        """Return the properties of structured answers, as the job was asked for them."""
        workspace, path = self._place.workspace, self._place.description
        if path is None or not workspace.exists(path):
            return None
        with workspace.open(path) as file:
            return object_kinds(described_schema(loads(file.read())))

    def _dead_rows(self) -> Iterator[dict[str, Any]]:
        job, books = self._place.job, self._place.books
        return dead_rows(*books, job) if self._dead and books is not None and job is not None else iter(())


def read_results(
    ref: Any = None,
    *,
    dag_id: str | None = None,
    run_id: str | None = None,
    task_id: str | None = None,
    map_index: int = -1,
    dead: bool = False,
) -> Results:
    """Return the answers of a job. Works in tasks, and outside of them where AIRFLOW_HOME is set as theirs.

    :param ref: what a task of the job returned (its XCom), the job's id or 6 or more characters of it, or
        path or address of a results folder.
    :param dag_id: in place of ``ref``, with ``run_id`` and ``task_id``: the job of this task.
    :param run_id: its DAG run.
    :param task_id: its submitting task, another task of the group, the group, or its ``job_key``.
    :param map_index: its map index, -1 for an unmapped task.
    :param dead: also return the rows that have failed for good, after the answers.
    :raises ResultsError: there is no such job, it has no results yet, or they were purged.
    :raises ConfigurationError: the arguments do not fit together, or the ledger cannot be opened.
    """
    place = find_results(ref, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    return results_at(place, dead=dead)


def results_at(place: Place, *, dead: bool = False) -> Results:
    """Open the results in a place.

    :raises ResultsError: there are none yet, or they were purged.
    """
    manifest = read_manifest(place.workspace, place.folder)
    if not manifest:
        state = f": it is {place.job.state}" if place.job is not None else ""
        raise ResultsError(f"there are no results in {place.url}{state}")
    if manifest.get("purged"):
        raise ResultsError(f"the results in {place.url} were purged; counts and digests are left")
    if dead and place.job is None:
        place = _with_job(place, str(manifest["job"]))
    return Results(place, manifest, dead=dead)


def refuse_unsettled(place: Place) -> None:
    """:raises ResultsError: the job has not settled, so that more rows may be answered."""
    job = place.job
    if job is not None and job.state is not JobState.SETTLED:
        code = f" ({job.halt_code})" if job.halt_code else ""
        raise ResultsError(
            f"job {job.job_id} of task {job.key.task_id} is {job.state}{code}: its results are read when it "
            "has settled"
        )


def _with_job(place: Place, job_id: str) -> Place:
    """Find the job of a folder in the ledger: dead rows stand there."""
    books = open_books()
    job = books[0].get_job(job_id)
    if job is None:
        raise ResultsError(f"job {job_id} is not in this ledger, which would have its dead rows")
    return replace(place, job=job, books=books)
