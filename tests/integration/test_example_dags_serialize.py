"""DAG files that hold our wrappers become the same bytes in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "example_dags"
EVERY_WRAPPER = Path(__file__).parent / "tasks" / "dags" / "every_wrapper.py"

#: Parses DAG files as the dag-processor does and writes what it would store.
_SERIALIZE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

serialized = {}
for path in sys.argv[2:]:
    bag = DagBag(dag_folder=path)
    assert not bag.import_errors, bag.import_errors
    for dag_id, dag in bag.dags.items():
        serialized[dag_id] = DagSerialization.to_dict(dag)
with open(sys.argv[1], "w") as file:
    # Airflow too sorts names before it compares: its own field names come in the order of a set.
    json.dump(serialized, file, sort_keys=True)
"""


def serialize(out: Path, hash_seed: str, *paths: Path) -> subprocess.Popen[bytes]:
    """Start a process of its own that serializes the DAG files."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(
        [sys.executable, "-c", _SERIALIZE, str(out), *map(str, paths)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def outputs(airflow_db: None, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What two processes, with other hash seeds, make of all the DAG files."""
    folder = tmp_path_factory.mktemp("serialized")
    outs = [folder / "one.json", folder / "two.json"]
    processes = [
        serialize(out, seed, EXAMPLES, EVERY_WRAPPER) for out, seed in zip(outs, ("0", "4242"), strict=True)
    ]
    for process in processes:
        told, _ = process.communicate()
        assert process.returncode == 0, told.decode()
    return [out.read_bytes() for out in outs]


def test_two_processes_serialize_every_dag_to_the_same_bytes(outputs: list[bytes]) -> None:
    assert outputs[0] == outputs[1]


def test_every_example_file_is_among_them(outputs: list[bytes]) -> None:
    found = json.loads(outputs[0])
    files = {dag["dag"]["fileloc"] for dag in found.values()}
    examples = {str(path) for path in EXAMPLES.glob("*.py") if "DAG(" in path.read_text()}
    assert examples and examples <= files
    assert "every_wrapper" in found


def test_no_row_is_part_of_a_serialized_dag(outputs: list[bytes]) -> None:
    assert b"row 19" not in outputs[0]


def test_every_group_has_the_same_four_tasks_in_order(outputs: list[bytes]) -> None:
    dag = json.loads(outputs[0])["every_wrapper"]["dag"]
    tasks = {task["__var"]["task_id"]: task["__var"] for task in dag["tasks"]}
    for group in ("sql", "file", "native", "upstream", "listed"):
        chain = [f"{group}.{name}" for name in ("submit", "reconcile", "retry", "dead_letter")]
        for before, after in zip(chain, chain[1:], strict=False):
            assert tasks[before]["downstream_task_ids"] == [after]
        assert tasks[chain[-1]].get("downstream_task_ids", []) == []
    assert tasks["fetch"]["downstream_task_ids"] == ["upstream.submit"]


def test_tasks_wait_for_what_their_arguments_name_mapped_or_not(outputs: list[bytes]) -> None:
    dag = json.loads(outputs[0])["every_wrapper"]["dag"]
    before: dict[str, set[str]] = {}
    for task in dag["tasks"]:
        for later in task["__var"].get("downstream_task_ids", ()):
            before.setdefault(later, set()).add(task["__var"]["task_id"].partition("__")[0])
    for name in ("mapped_one", "made", "case.ask.submit"):
        assert before[name] == {"fetch"}, name
    assert before["case.judge.submit"] == {"case.ask.dead_letter"}
    # A mapped group's argument in a table's name: whoever lands answers waits for it, too.
    assert before["case.ask.dead_letter"] == {"case.ask.retry", "fetch"}
