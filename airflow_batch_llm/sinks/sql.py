"""Answers as rows of a table: updated by key, put in place of a partition, or added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_batch_llm.core.drafts import AnswerSchema
from airflow_batch_llm.core.endpoints import CHAT
from airflow_batch_llm.declared import (
    Context,
    Declared,
    Renderer,
    conn_id_argument,
    names,
    plain_argument,
    text_argument,
)
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.sinks.columns import JOB_AND_ID, layout
from airflow_batch_llm.sinks.table_sink import Manner, SqlTableSink, check_key

UPSERT, REPLACE, APPEND = "upsert", "replace_partition", "append"
_MODES = (UPSERT, REPLACE, APPEND)
_PUBLISH = ("settled", "each_round")
_ON_WITHDRAWN = ("keep", "delete")


class SqlSink(Declared):
    """A table of PostgreSQL, MySQL, MariaDB or SQLite that answers are written to.

    One row an answer: the columns of ``partition``; the key columns; the answer (one column for each
    property of the output schema; what is not taken apart goes to ``output``; moderations fill ``flagged``,
    ``categories`` and ``category_scores``); the carried columns; and the bookkeeping columns
    ``_custom_id``, ``_model``, ``_job_id``, ``_run_id``, ``_job_created_at`` (seconds since the epoch),
    ``_revision``, ``_round``, ``_landed_at``. The NUL character becomes U+FFFD.

    Landing the same answers twice changes nothing, in every mode.

    :param conn_id: Airflow connection of the database. Templated.
    :param table: ``table`` or ``schema.table``; names are quoted, so case matters. Templated.
    :param key: the source's key columns; a mapping ``{source column: table column}`` renames them.
    :param mode: ``upsert``: a row of the same key is updated, if it is not newer. ``replace_partition``: in
        one transaction the answers take the place of all rows with the values of ``partition``. ``append``:
        each job adds its rows and leaves those of other jobs alone.
    :param partition: columns and the value that all rows of the job have there; with ``replace_partition``
        they say what is replaced, and are required. Values templated.
    :param version_column: with ``upsert``: the key or carried column that holds the source row's version
        (``updated_at``, a number); an older version never overwrites a newer one, whatever job it is from.
    :param publish: ``settled``: answers land once the job is done. ``each_round``: also after each round.
    :param on_withdrawn: what becomes of the job's rows whose source row is gone after a clear: ``keep`` or
        ``delete``.
    :param columns: which properties of the answer to write; a mapping ``{property: column}`` also renames,
        carried columns as well.
    :param create: make the table where it is absent.
    """

    def __init__(
        self,
        conn_id: str,
        table: str,
        *,
        key: str | Sequence[str] | Mapping[str, str],
        mode: str = UPSERT,
        partition: Mapping[str, Any] | None = None,
        version_column: str | None = None,
        publish: str = "settled",
        on_withdrawn: str = "keep",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        create: bool = False,
    ) -> None:
        self.mode = _one_of(mode, _MODES, "mode")
        self.publish = _one_of(publish, _PUBLISH, "publish")
        self.on_withdrawn = _one_of(on_withdrawn, _ON_WITHDRAWN, "on_withdrawn")
        if mode == REPLACE and not partition:
            raise ConfigurationError(
                "SqlSink's mode 'replace_partition' needs partition, the columns and values of what is "
                'replaced: partition={"day": "{{ ds }}"}'
            )
        if mode == REPLACE and publish == "each_round":
            raise ConfigurationError(
                "SqlSink's publish='each_round' does not go with mode 'replace_partition': a partition is "
                "replaced as a whole, once every row has an answer"
            )
        if version_column is not None and mode != UPSERT:
            raise ConfigurationError(
                f"SqlSink's version_column goes with mode 'upsert' only, not with {mode!r}"
            )
        self.conn_id = conn_id_argument(conn_id, "SqlSink's conn_id", reference=True)
        self.table = text_argument(table, "SqlSink's table", reference=True)
        self.key = _renamed(key, "SqlSink's key")
        self.partition = _partition(partition)
        self.version_column = (
            None if version_column is None else text_argument(version_column, "SqlSink's version_column")
        )
        self.columns = None if columns is None else _renamed(columns, "SqlSink's columns")
        self.create = create

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as given."""
        return {
            "type": "sql",
            "conn_id": plain_argument(self.conn_id, "SqlSink's conn_id"),
            "table": plain_argument(self.table, "SqlSink's table"),
            "key": self.key,
            "mode": self.mode,
            "partition": plain_argument(self.partition or None, "SqlSink's partition"),
            "version_column": self.version_column,
            "publish": self.publish,
            "on_withdrawn": self.on_withdrawn,
            "columns": self.columns,
            "create": self.create,
        }

    def _templated(self) -> Iterable[Any]:
        return (self.conn_id, self.table, self.partition)

    def resolve(
        self,
        context: Context,
        schema: AnswerSchema | None = None,
        source_key: Sequence[str] | None = None,
        *,
        endpoint: str = CHAT,
        carry: Sequence[str] = (),
    ) -> SqlTableSink:
        """Render the templated parts and lay out the columns; nothing is opened yet.

        :param schema: the output schema, None for free text.
        :param source_key: the source's key columns, so that a key that does not fit is told before money
            is spent.
        :param endpoint: path of the endpoint that answers.
        :param carry: the source columns that the job carries; each becomes a column.
        :raises SinkError: the key or the columns do not fit source and schema.
        :raises ConfigurationError: a templated part renders to what it cannot be.
        """
        render = Renderer(context)
        constants = {name: _constant(render(value), name) for name, value in self.partition.items()}
        if self.mode == APPEND:
            unique: Sequence[str] = JOB_AND_ID
        elif self.mode == REPLACE:
            unique = (*constants, *self.key.values())
        else:
            unique = tuple(self.key.values())
        found = layout(
            self.key,
            self.columns,
            schema,
            endpoint=endpoint,
            carry=carry,
            constants=constants,
            unique=unique,
            version=self.version_column,
        )
        if source_key is not None:
            check_key(found, source_key, whole=self.mode != APPEND)
        return SqlTableSink(
            render.text(self.conn_id, "the sink's conn_id"),
            render.text(self.table, "the sink's table"),
            found,
            Manner(self.create, replace=self.mode == REPLACE, append=self.mode == APPEND),
            each_round=self.publish == "each_round",
            # What is put in place of a partition leaves nothing of rows that are gone.
            deletes_withdrawn=self.on_withdrawn == "delete" and self.mode != REPLACE,
        )


def _one_of(value: str, known: Sequence[str], what: str) -> str:
    if value not in known:
        raise ConfigurationError(
            f"SqlSink's {what} {value!r} is not known; there are {', '.join(map(repr, known))}"
        )
    return value


def _renamed(value: Any, what: str) -> dict[str, str]:
    """Return names, or a mapping of names to names, as a mapping.

    :raises ConfigurationError: it is neither.
    """
    if not isinstance(value, Mapping):
        return {name: name for name in names(value, what)}
    return dict(zip(names(tuple(value), what), names(tuple(value.values()), what), strict=True))


def _partition(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"SqlSink's partition must be a mapping of columns to values, not a {type(value).__name__}"
        )
    names(tuple(value), "SqlSink's partition")
    plain_argument(value, "SqlSink's partition")
    return dict(value)


def _constant(value: Any, column: str) -> Any:
    """:raises ConfigurationError: it is no value that a column can be compared with."""
    plain = plain_argument(value, f"SqlSink's partition[{column!r}]")
    if plain is None or plain == "" or not isinstance(plain, (str, int, float)):
        found = "nothing" if plain in (None, "") else "several values"
        raise ConfigurationError(f"SqlSink's partition[{column!r}] renders to {found}; give text or a number")
    return plain
