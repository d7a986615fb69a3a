"""The answers of other jobs as rows: judge passes, evals, the next step of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.declared import Context, Renderer, is_reference, names, plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, ResultsError
from airflow_batch_llm.sources.base import RowReader, Source

if TYPE_CHECKING:
    from airflow_batch_llm.results.finding import Place

#: Columns that every row has. A key or carried column of the same name stands as ``key_…`` or ``carry_…``.
COLUMNS = ("custom_id", "output", "model", "origin", "job_id", "map_index")
#: Further columns with ``include_dead``.
DEAD_COLUMNS = ("verdict", "code")
_DEFAULT_KEY = ("custom_id",)
_WANTED = "give what a task of a batch job returns"


class ResultsSource(Source):
    """The answers of a job that has settled, one row each; of several jobs, laid end to end.

    Columns: ``custom_id``, ``output`` (the object of a structured job, else the text), ``model``, ``origin``,
    ``job_id`` and ``map_index`` of the answering job, its key columns and its carried ones. A key or carried
    column that has one of these names stands as ``key_…`` or ``carry_…``. With ``include_dead`` also
    ``verdict`` and ``code`` (``ok`` for answers): dead rows have no ``output``.

    :param ref: what a task of the job returned (``labels_task.output``), a job id, or a list of them: the
        output of a mapped task, or of a task in a mapped group. Templated.
    :param dag_id: in place of ``ref``, with ``run_id`` and ``task_id``: the job of this task. Templated.
    :param run_id: its DAG run. Templated.
    :param task_id: its submitting task, its group, or its ``job_key``. Templated.
    :param map_index: its map index, -1 for an unmapped task. Templated.
    :param key: the columns that name a row. Rows of several jobs need one that tells the jobs apart:
        ``map_index`` or ``job_id``, or a key or carried column.
    :param include_dead: also the rows that have failed for good: in a score they count in the denominator.
    :raises ConfigurationError: the arguments do not fit together.
    """

    def __init__(
        self,
        ref: Any = None,
        *,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        map_index: int | str = -1,
        key: str | Sequence[str] = _DEFAULT_KEY,
        include_dead: bool = False,
    ) -> None:
        named = (dag_id, run_id, task_id)
        if (ref is None and None in named) or (ref is not None and named != (None, None, None)):
            raise ConfigurationError(
                "ResultsSource takes a task's output, a job id, or a list of them; or else dag_id, run_id "
                "and task_id"
            )
        if isinstance(ref, (set, frozenset)):
            raise ConfigurationError("ResultsSource: a set has no order; give a list of references")
        self.ref = ref
        self.dag_id, self.run_id, self.task_id = named
        self.map_index = map_index
        self.key = names(key, "key")
        self.include_dead = bool(include_dead)

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "results",
            "ref": plain_argument(self.ref, "ref"),
            "dag_id": plain_argument(self.dag_id, "dag_id"),
            "run_id": plain_argument(self.run_id, "run_id"),
            "task_id": plain_argument(self.task_id, "task_id"),
            "map_index": plain_argument(self.map_index, "map_index"),
            "key": list(self.key),
            "include_dead": self.include_dead,
        }

    def _templated(self) -> Iterable[Any]:
        return (self.ref, self.dag_id, self.run_id, self.task_id, self.map_index)

    def resolve(self, context: Context) -> ResultsReader:
        """Pull the references; nothing is read yet.

        :raises ResultsError: the upstream task returned nothing, or something else than references.
        """
        if self.ref is None:
            render = Renderer(context)
            names_ = {
                name: render.text(getattr(self, name), f"ResultsSource's {name}")
                for name in ("dag_id", "run_id", "task_id")
            }
            index = _whole_number(render(self.map_index))
            return ResultsReader([_Named(**names_, map_index=index)], self.key, self.include_dead)
        value = self.ref.resolve(context) if is_reference(self.ref) else Renderer(context)(self.ref)
        return ResultsReader(_references(value), self.key, self.include_dead)


@dataclass(frozen=True)
class _Named:
    """A job by the names of its task."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class ResultsReader(RowReader):
    """Rows of jobs that have settled."""

    def __init__(self, refs: Sequence[Any], key: Sequence[str], include_dead: bool) -> None:
        super().__init__(key, "the results" if len(refs) == 1 else f"the results of {len(refs)} jobs")
        self._refs = refs
        self._include_dead = include_dead
        if len(refs) > 1 and tuple(key) == _DEFAULT_KEY:
            raise ResultsError(
                "the rows of several jobs may have the same custom_id: give a key that tells the jobs apart, "
                "such as key=['map_index', 'custom_id']"
            )

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows of all jobs, numbered from 1.

        :raises ResultsError: there is no such job, it has not settled, or its results were purged.
        """
        from airflow_batch_llm.results.finding import find_results, open_books
        from airflow_batch_llm.results.reading import refuse_unsettled, results_at

        books = open_books()
        places = []
        for ref in self._refs:
            place = (
                find_results(**vars(ref), books=books)
                if isinstance(ref, _Named)
                else find_results(ref, books=books)
            )
            refuse_unsettled(place)
            places.append(place)
        number = 0
        for place in places:
            for row in results_at(place, dead=self._include_dead):
                number += 1
                yield number, _columns(place, row)


def _columns(place: Place, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the results as columns."""
    job = place.job
    columns = {
        "custom_id": row["custom_id"],
        "output": row["output"],
        "model": row["model"],
        "origin": row["origin"],
        "job_id": job.job_id if job is not None else None,
        "map_index": job.key.map_index if job is not None else None,
    }
    if "verdict" in row:
        columns |= {name: row[name] for name in DEAD_COLUMNS}
    for part in ("key", "carry"):
        for name, value in row[part].items():
            while name in columns:
                name = f"{part}_{name}"
            columns[name] = value
    return columns


def _references(value: Any) -> list[Any]:
    """Return the jobs that are meant; an empty list has no rows.

    :raises ResultsError: nothing, or something else stands there.
    """
    if value is None:
        raise ResultsError(f"the upstream task returned nothing; {_WANTED}")
    if isinstance(value, (str, Mapping)):
        return [value]
    if not isinstance(value, Iterable):
        raise ResultsError(
            f"a {type(value).__name__} names no results; give what a task of a batch job returns"
        )
    refs = list(value)
    for place, ref in enumerate(refs, 1):
        if not isinstance(ref, (str, Mapping)):
            raise ResultsError(
                f"reference {place} of {len(refs)} is a {type(ref).__name__}, no name of results; {_WANTED}"
            )
    return refs


def _whole_number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"ResultsSource's map_index renders to a {type(value).__name__}, not to a whole number"
        ) from None
