from __future__ import annotations

from typing import Any

import pytest

from airflow_batch_llm.server.schema_instances import make_instance

TEXT = """Read this invoice.

Invoice no: INV-7
total = 12.50
Due date: 2026-03-01
Paid: yes
Lines: 3
Lines: 4"""


def made(name: str, schema: dict[str, Any]) -> Any:
    return make_instance({"type": "object", "properties": {name: schema}, "required": [name]}, TEXT)[name]


@pytest.mark.parametrize(
    ("name", "schema", "value"),
    [
        ("invoice_no", {"type": "string"}, "INV-7"),
        ("total", {"type": "number"}, 12.5),
        ("due_date", {"type": "string", "format": "date"}, "2026-03-01"),
        ("paid", {"type": "boolean"}, True),
        ("lines", {"type": "integer"}, 4),
    ],
)
def test_a_property_takes_what_the_last_line_with_its_name_says(
    name: str, schema: dict[str, Any], value: object
) -> None:
    assert made(name, schema) == value


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("invoice_no", {"type": "integer"}),
        ("lines", {"type": "integer", "maximum": 3}),
        ("invoice_no", {"type": "string", "maxLength": 4}),
        ("total", {"type": "string", "format": "date"}),
    ],
)
def test_a_value_that_breaks_the_schema_is_not_taken(name: str, schema: dict[str, Any]) -> None:
    import jsonschema

    value = made(name, schema)
    assert value not in ("INV-7", 4, "12.50")
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
