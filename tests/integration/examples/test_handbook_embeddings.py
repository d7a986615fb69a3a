from __future__ import annotations

import json

import pytest

from tests.integration.examples.days import Examples
from tests.integration.tasks.desk import Traffic, Warehouse


def paragraphs(word: str, number: int) -> str:
    """Return so many paragraphs of which two do not fit into one chunk."""
    return "\n\n".join(f"{word} {n}: " + f"{word} rules apply here. " * 20 for n in range(number))


@pytest.fixture(autouse=True)
def documents(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, body TEXT)")
    for word, number in (("holiday", 3), ("travel", 2), ("security", 1)):
        warehouse.execute("INSERT INTO documents VALUES (?, ?)", (word, paragraphs(word, number)))


def vectors(warehouse: Warehouse) -> dict[tuple[str, int], list[float]]:
    rows = warehouse.execute("SELECT document_id, chunk, embedding FROM chunk_vectors")
    return {(document, chunk): json.loads(vector) for document, chunk, vector in rows}


def test_every_chunk_of_the_corpus_has_its_vector(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    assert examples.run("handbook_embeddings").state == "success"
    found = vectors(warehouse)
    assert set(found) == {
        ("holiday", 0),
        ("holiday", 1),
        ("holiday", 2),
        ("travel", 0),
        ("travel", 1),
        ("security", 0),
    }
    assert len({len(vector) for vector in found.values()}) == 1
    assert all(any(value != 0 for value in vector) for vector in found.values())
    assert traffic.sent == 6


def test_a_night_pays_for_changed_chunks_and_the_table_is_the_new_corpus(
    examples: Examples, warehouse: Warehouse, traffic: Traffic
) -> None:
    examples.run("handbook_embeddings", 0)
    before = vectors(warehouse)
    warehouse.execute(
        "UPDATE documents SET body = ? WHERE id = 'travel'", (paragraphs("travel", 2) + " Soon.",)
    )
    warehouse.execute("DELETE FROM documents WHERE id = 'security'")
    traffic.forget()
    assert examples.run("handbook_embeddings", 1).state == "success"
    assert traffic.sent == 1
    after = vectors(warehouse)
    assert set(after) == set(before) - {("security", 0)}
    changed = {place for place in after if after[place] != before[place]}
    assert changed == {("travel", 1)}
    texts = dict(warehouse.execute("SELECT chunk, text FROM chunk_vectors WHERE document_id = 'travel'"))
    assert texts[1].endswith("Soon.")
