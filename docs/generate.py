"""Writes the parts of the documentation that code decides: ``python docs/generate.py [--check]``.

A generated part stands between two comments of its file, which name it. Nobody edits it by hand; a test
fails where a file is not what this script would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

import airflow_batch_llm as package
from airflow_batch_llm.backends import providers
from airflow_batch_llm.backends.capabilities import capabilities_of
from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.backends.openai_endpoints import FORMS
from airflow_batch_llm.backends.openai_verdicts import RULES, Part
from airflow_batch_llm.backends.options import PARTICULAR
from airflow_batch_llm.backends.provider import Form
from airflow_batch_llm.cli.providers import endpoint_names, size, window
from airflow_batch_llm.core.endpoints import ENDPOINTS
from airflow_batch_llm.core.verdicts import MEANINGS, STANDING, Verdict
from airflow_batch_llm.get_provider_info import get_provider_info
from airflow_batch_llm.operators.base import BatchLLMJobOperator
from airflow_batch_llm.storage.schema import metadata

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

#: Parameters that no docstring describes where the reader of one block would look.
PARAMETER_MEANINGS: dict[tuple[str, str], str] = {
    ("batch_llm_group", "group_id"): "id of the group; the tasks are `<group_id>.submit` and so on",
    ("batch_llm_group", "output_schema"): (
        'pydantic class, `"module:Class"` or JSON schema that answers must fit. None: free text'
    ),
}

#: Where the meaning of a parameter that a class only passes on stands.
INHERITED: dict[str, tuple[Any, ...]] = {
    "batch_llm_group": (
        package.BatchLLMSubmitOperator,
        package.BatchLLMDeadLetterOperator,
        BatchLLMJobOperator,
    ),
    "BatchLLMRedriveOperator": (BatchLLMJobOperator,),
}

BLOCKS: dict[str, Any] = {
    "batch_llm_group": package.batch_llm_group,
    "BatchLLMJobOperator": BatchLLMJobOperator,
    **{
        name: getattr(package, name)
        for name in (
            "BatchLLMSubmitOperator",
            "BatchLLMDeadLetterOperator",
            "BatchLLMRedriveOperator",
            "SqlSource",
            "FileSource",
            "RowsSource",
            "ResultsSource",
            "OpenAIBatchFile",
            "RowPrompt",
            "Image",
            "RowRetry",
            "Reuse",
            "SqlSink",
            "Retention",
            "read_results",
        )
    },
}


# -- parameters ------------------------------------------------------------------------------------
def parameter_table(name: str) -> str:
    """Return the parameters of a block with type, default and meaning.

    :raises LookupError: no docstring says what a parameter means.
    """
    block = BLOCKS[name]
    meanings = _meanings(name, block)
    rows = []
    for parameter in _parameters(block):
        if parameter.name not in meanings:
            raise LookupError(f"{name}: no docstring says what {parameter.name!r} is")
        rows.append((f"`{parameter.name}`", _type(parameter), _default(parameter), meanings[parameter.name]))
    return _table(("parameter", "type", "default", "meaning"), rows)


def _parameters(block: Any) -> Iterator[inspect.Parameter]:
    target = block.__init__ if isinstance(block, type) else block
    for parameter in inspect.signature(inspect.unwrap(target)).parameters.values():
        if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter


def _meanings(name: str, block: Any) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for source in (*reversed(INHERITED.get(name, ())), block):
        meanings |= docstring_parameters(source)
    return meanings | {key: text for (owner, key), text in PARAMETER_MEANINGS.items() if owner == name}


def docstring_parameters(block: Any) -> dict[str, str]:
    """Return parameter -> text of the ``:param name:`` fields of a docstring, as one line of Markdown."""
    found = re.findall(
        r"^:param (\w+):(.*?)(?=^:|\Z|^\s*$)", inspect.getdoc(block) or "", re.MULTILINE | re.DOTALL
    )
    return {name: _markdown(" ".join(text.split())) for name, text in found}


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").removesuffix(".")


def _type(parameter: inspect.Parameter) -> str:
    # DAG authors write enum values as strings, and Any stands for what the text lists.
    text = "see text" if parameter.annotation == "Any" else str(parameter.annotation)
    return text if text == "see text" else f"`{text}`"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "*required*"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, timedelta):
        return f"{value.days} days"
    if callable(value) or type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "`{}`"
    return f"`{value!r}`"


# -- verdicts --------------------------------------------------------------------------------------
def verdict_table() -> str:
    """Return verdict, default disposition, meaning and reason."""
    rows = [
        (f"`{verdict}`", f"`{MEANINGS[verdict].disposition}`", MEANINGS[verdict].says, MEANINGS[verdict].why)
        for verdict in Verdict
    ]
    return _table(("verdict", "by default", "what the row says", "why that is done"), rows)


def openai_code_table() -> str:
    """Return the rules of the OpenAI family: part of a row, what it holds, verdict, disposition, reason."""
    rows = [
        (
            rule.part.value,
            ", ".join(f"`{word}`" for word in rule.words),
            f"`{rule.verdict}`",
            f"`{MEANINGS[rule.verdict].disposition}`",
            rule.why + (f" ({rule.who})" if rule.who else ""),
        )
        for part in Part
        for rule in RULES
        if rule.part is part
    ]
    return _table(("part of the row", "what it holds", "verdict", "by default", "what it means"), rows)


def standing_list() -> str:
    """Return the verdicts in the order in which one of several rows for a request stands."""
    return ", ".join(f"`{verdict}`" for verdict in sorted(Verdict, key=STANDING.__getitem__))


# -- settings, limits ------------------------------------------------------------------------------
def settings_table() -> str:
    """Return the options of ``[batch_llm]``."""
    options = get_provider_info()["config"]["batch_llm"]["options"]
    rows = [
        (f"`{name}`", f"`{option['default']}`" if option["default"] else "", option["description"])
        for name, option in options.items()
    ]
    return _table(("option", "default", "meaning"), rows)


def connection_table() -> str:
    """Return the fields of the connection form, beside base URL and key."""
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    rows = [
        (f"`{name}`", field["label"], field["description"], _takers(name)) for name, field in fields.items()
    ]
    return _table(("extra", "in the form", "meaning", "taken by"), rows)


def _takers(name: str) -> str:
    """Say which providers take an option; the others refuse it."""
    if name not in PARTICULAR:
        return "all"
    lacks = [f"`{row.name}`" for row in providers().values() if name not in row.options]
    takes = [f"`{row.name}`" for row in providers().values() if name in row.options]
    return f"all but {', '.join(lacks)}" if len(lacks) < len(takes) else ", ".join(takes)


def dialect_table() -> str:
    """Return what one batch may hold in each dialect."""
    rows = [
        (
            f"`{row.name}`",
            row.base_url or "yours",
            f"{row.limits.max_requests:,}",
            f"{row.limits.max_bytes // 1_000_000} MB",
            f"{row.limits.max_line_bytes // 1_000_000} MB",
            f"`{row.max_tokens_field}`",
        )
        for row in DIALECTS.values()
    ]
    head = ("dialect", "base URL", "requests in a batch", "bytes of its file", "bytes of a request")
    return _table((*head, "`max_tokens` is sent as"), rows)


def provider_table() -> str:
    """Return where the providers are and what one batch may hold."""
    rows = [
        (
            f"`{row.name}`",
            row.title,
            f"`{row.protocol}`",
            row.base_url or f"yours, e.g. `{row.example_url}`",
            "required" if row.key_required else "may be empty",
            ", ".join(f"`{name}`" for name in endpoint_names(row)),
            f"{row.limits.max_requests:,}",
            size(row.limits.max_bytes),
            size(row.limits.max_line_bytes),
            window(row),
        )
        for row in providers().values()
    ]
    head = ("name", "who", "protocol", "base URL", "key", "endpoints")
    return _table((*head, "requests", "batch", "request", "window"), rows)


def capability_table() -> str:
    """Return what requests to the providers can hold, how batches are found again, what was tested."""
    rows = []
    for row in providers().values():
        can = capabilities_of(row)
        rows.append(
            (
                f"`{row.name}`",
                row.found_by,
                "kept" if row.keeps_partial else "not kept",
                f"`{can.schema}`" if can.schema else "refused",
                "yes" if can.tools else "refused",
                " and ".join({"address": "by address", "data": "as data"}[how] for how in can.images)
                or "refused",
                f"`{can.prefix}`" if can.prefix else "nothing to mark",
                ", ".join(_option(name, form) for name, form in row.fields.items()) or "none",
                row.tested,
            )
        )
    head = ("name", "found again by", "partial results", "schema sent in", "tools", "images")
    return _table((*head, "`cache_prefix`", "options of its own", "tested"), rows)


def _option(name: str, form: Form | None) -> str:
    return f"`{name}` ({form.says})" if form else f"`{name}`"


def provider_notes() -> str:
    """Return what a user should know of each provider."""
    return "\n".join(f"- `{row.name}`: {' '.join(row.notes)}" for row in providers().values() if row.notes)


def endpoint_table() -> str:
    """Return what the requests of each endpoint hold, and what is refused in them."""
    rows = []
    for name, path in ENDPOINTS.items():
        form = FORMS[path]
        limit = "as the dialect says" if form.max_tokens == "" else f"`{form.max_tokens}`"
        rows.append(
            (
                f"`{name}`",
                f"`{path}`",
                "refused" if form.max_tokens is None else limit,
                f"`{form.schema.value}`" if form.schema else "refused",
                ", ".join(f"`{member}`" for member in form.lacks) or "",
            )
        )
    return _table(("endpoint", "path", "`max_tokens` is sent as", "a schema is sent in", "refused"), rows)


# -- ledger ----------------------------------------------------------------------------------------
def ledger_table(name: str) -> str:
    """Return the columns of a ledger table with their meanings.

    :raises LookupError: a column has no meaning, or a meaning no column.
    """
    from ledger_columns import MEANINGS

    table, meanings = metadata.tables[name], MEANINGS[name]
    if set(table.columns.keys()) != set(meanings):
        raise LookupError(f"{name}: {set(table.columns.keys()) ^ set(meanings)}")
    rows = []
    for column in table.columns:
        kind = re.sub(r" COLLATE .*", "", column.type.compile(postgresql.dialect())).lower()
        name_ = f"`{column.name}`" + (" (key)" if column.primary_key else "")
        rows.append((name_, f"`{kind}`" + (", null" if column.nullable else ""), meanings[column.name]))
    return _table(("column", "type", "meaning"), rows)


def ledger_ddl() -> str:
    """Return what ``batch-llm db migrate`` makes on PostgreSQL, beside its version table."""
    dialect = postgresql.dialect()
    statements = []
    for table in metadata.tables.values():
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements += [str(CreateIndex(index).compile(dialect=dialect)) for index in indexes]
    text = ";\n".join(re.sub(r"[ \t]+$", "", s, flags=re.MULTILINE).replace("\t", "  ") for s in statements)
    return f"```sql\n{text};\n```"


# -- writing ---------------------------------------------------------------------------------------
PARTS: Mapping[str, Callable[[], str]] = {
    **{f"parameters {name}": (lambda name=name: parameter_table(name)) for name in BLOCKS},
    **{f"ledger {name}": (lambda name=name: ledger_table(name)) for name in metadata.tables},
    "ledger ddl": ledger_ddl,
    "verdicts": verdict_table,
    "openai codes": openai_code_table,
    "standing": standing_list,
    "settings": settings_table,
    "connection fields": connection_table,
    "dialects": dialect_table,
    "providers": provider_table,
    "provider capabilities": capability_table,
    "provider notes": provider_notes,
    "endpoints": endpoint_table,
}

_PART = re.compile(r"(<!-- generated: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]


def written(text: str) -> str:
    """Return a page with its generated parts as the code decides now. :raises KeyError: unknown part."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[4]}", text)


def used_parts() -> set[str]:
    """Return the names of the parts that some page holds."""
    return {found[2] for page in pages() for found in _PART.finditer(page.read_text("utf-8"))}


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` say which are not up to date (exit status 1)."""
    stale = []
    for page in pages():
        before = page.read_text("utf-8")
        after = written(before)
        if after != before:
            stale.append(page)
            if "--check" not in arguments:
                page.write_text(after, "utf-8")
    for page in stale:
        print(page.relative_to(ROOT))
    return 1 if stale and "--check" in arguments else 0


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
