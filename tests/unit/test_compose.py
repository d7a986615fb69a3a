"""``docker-compose.yaml`` is checked without a container engine: its form, and that all it names exists."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module, resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from airflow_batch_llm.server.gate import HEALTH

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
IMAGE = "airflow-batch-llm:local"
BUILTINS = {"umask", "printf", "cd", "test"}
#: Programs of the images that come from elsewhere than Python.
IMAGE_PROGRAMS = {"curl", "pg_isready", "redis-cli", "redis-server"}
_VARIABLE = re.compile(r"\$\{(\w+)(:-[^}]*)?\}")


def _resolve(node: Any, given: dict[str, str] | None = None) -> Any:
    """Put variables in as Compose does: ``${NAME:-default}``, and ``$$`` for a dollar."""
    if isinstance(node, dict):
        return {key: _resolve(value, given) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolve(value, given) for value in node]
    if isinstance(node, str):
        text = _VARIABLE.sub(lambda m: (given or {}).get(m[1], (m[2] or "")[2:]), node)
        return text.replace("$$", "$")
    return node


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


@pytest.fixture(scope="module")
def compose(raw: dict[str, Any]) -> dict[str, Any]:
    resolved: dict[str, Any] = _resolve(raw)
    return resolved


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def airflow_services(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in services.items() if name.startswith("airflow-")}


def _commands(service: dict[str, Any]) -> Iterator[list[str]]:
    """Every program call of a service: its command, the lines of a shell command, the health check."""
    yield from _unfold(service.get("command", []))
    test = service.get("healthcheck", {}).get("test", [])
    if test and test[0] == "CMD":
        yield test[1:]
    elif test:
        assert test[0] == "CMD-SHELL"
        yield shlex.split(test[1])


def _unfold(command: list[str]) -> Iterator[list[str]]:
    if command[:2] != ["bash", "-euc"]:
        if command:
            yield command
        return
    for line in command[2].splitlines():
        for call in " ".join(shlex.split(line, posix=False)).split(" || "):
            words = shlex.split(call)
            yield words[1:] if words[0] == "exec" else words


def test_the_file_follows_the_compose_specification(compose: dict[str, Any]) -> None:
    schema = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text(encoding="utf-8")))


def test_every_variable_has_a_default(raw: dict[str, Any]) -> None:
    missing = {m[1] for m in _VARIABLE.finditer(json.dumps(raw)) if m[2] is None}

    assert not missing


def test_every_part_of_a_deployment_is_there(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {
        "postgres", "redis", "batch-server", "airflow-init", "airflow-api-server", "airflow-scheduler",
        "airflow-dag-processor", "airflow-triggerer", "airflow-worker",
    }  # fmt: skip


def test_every_command_exists_and_takes_its_arguments(services: dict[str, dict[str, Any]]) -> None:
    from airflow.cli.cli_parser import get_parser

    from airflow_batch_llm.cli.main import build_parser

    called = set()
    for service in services.values():
        for program, *arguments in _commands(service):
            called.add(program)
            if program == "airflow":
                get_parser().parse_args(arguments)
            elif program == "batch-llm":
                build_parser(arguments[0])[0].parse_args(arguments)
            elif program == "celery":
                _check_celery_application(arguments)
            elif program == "python":
                compile(arguments[arguments.index("-c") + 1], program, "exec")
            else:
                assert program in BUILTINS | IMAGE_PROGRAMS

    assert {"airflow", "batch-llm", "celery", "python"} <= called


def _check_celery_application(arguments: list[str]) -> None:
    assert entry_points(group="console_scripts", name="celery")
    module, _, attribute = arguments[arguments.index("--app") + 1].rpartition(".")
    assert hasattr(import_module(module), attribute)
    assert arguments[2:4] == ["inspect", "ping"]


def test_the_components_run_what_they_are_named_for(services: dict[str, dict[str, Any]]) -> None:
    expected = {
        "airflow-api-server": ["airflow", "api-server"],
        "airflow-scheduler": ["airflow", "scheduler"],
        "airflow-dag-processor": ["airflow", "dag-processor"],
        "airflow-triggerer": ["airflow", "triggerer"],
        "airflow-worker": ["airflow", "celery", "worker"],
        "batch-server": ["batch-llm", "serve"],
    }
    for name, words in expected.items():
        first = next(_commands(services[name]))
        assert first[: len(words)] == words, name
    init = [command[:3] for command in _commands(services["airflow-init"])]
    assert ["airflow", "db", "migrate"] in init
    assert ["batch-llm", "db", "migrate"] in init


def test_every_path_of_this_machine_exists(services: dict[str, dict[str, Any]]) -> None:
    paths = set()
    for service in services.values():
        paths |= {volume.partition(":")[0] for volume in service.get("volumes", []) if volume[0] in "./~"}
        if build := service.get("build"):
            paths.add(build["context"])

    assert {".", "./example_dags"} <= paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_image_is_built_from_files_that_docker_is_given() -> None:
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]

    assert {"airflow_batch_llm", "pyproject.toml", "README.md", "LICENSE"} <= set(given)
    assert not [name for name in given if not (ROOT / name).exists()]


def test_the_image_pins_the_airflow_that_the_tests_run_with(services: dict[str, dict[str, Any]]) -> None:
    pins = dict(line.split("==") for line in (ROOT / ".ci/constraints.txt").read_text().split())
    dockerfile = services["airflow-scheduler"]["build"]["dockerfile_inline"]

    assert f"FROM apache/airflow:{pins['apache-airflow']}-python3." in dockerfile
    installed = Requirement(re.search(r'"(apache-airflow==[^"]+)"', dockerfile)[1])  # type: ignore[index]
    assert installed.specifier.contains(Version(pins["apache-airflow"]))


def test_named_things_are_declared(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        named = {v.partition(":")[0] for v in service.get("volumes", []) if v[0] not in "./~"}
        assert named <= set(compose["volumes"]), name
        assert {c["source"] for c in service.get("configs", [])} <= set(compose["configs"]), name


def test_who_waits_for_health_waits_for_a_service_that_reports_it(
    services: dict[str, dict[str, Any]],
) -> None:
    waited_for = {
        other
        for service in services.values()
        for other, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_healthy"
    }

    assert waited_for
    assert all("healthcheck" in services[name] for name in waited_for)


def test_every_long_running_service_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    without = {name for name, service in services.items() if "healthcheck" not in service}

    assert without == {"airflow-init"}


def test_ports_are_published_to_this_machine_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_airflow_setting_is_a_known_option(services: dict[str, dict[str, Any]]) -> None:
    from airflow.configuration import conf, retrieve_configuration_description

    from airflow_batch_llm.get_provider_info import get_provider_info

    known = {**retrieve_configuration_description(include_providers=True), **get_provider_info()["config"]}
    assert conf.has_option("celery", "broker_url")
    keys = {key for service in services.values() for key in service.get("environment", {})}
    for key in sorted(keys):
        if key.startswith("AIRFLOW__"):
            _, section, option = key.lower().split("__", 2)
            assert option in known[section]["options"], key


def test_all_airflow_services_share_keys_settings_and_connections(
    airflow_services: dict[str, dict[str, Any]],
) -> None:
    shared = {
        json.dumps(
            {k: v for k, v in one["environment"].items() if k.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))},
            sort_keys=True,
        )
        for one in airflow_services.values()
    }

    assert len(airflow_services) == 6
    assert len(shared) == 1
    assert {one["image"] for one in airflow_services.values()} == {IMAGE}


def test_the_defaults_are_keys_that_work(airflow_services: dict[str, dict[str, Any]]) -> None:
    from cryptography.fernet import Fernet

    environment = airflow_services["airflow-scheduler"]["environment"]

    Fernet(environment["AIRFLOW__CORE__FERNET_KEY"])
    assert len(environment["AIRFLOW__API_AUTH__JWT_SECRET"]) >= 32
    assert len(environment["AIRFLOW__API__SECRET_KEY"]) >= 32


def test_addresses_inside_name_a_service_and_its_port(services: dict[str, dict[str, Any]]) -> None:
    environment = services["airflow-worker"]["environment"]
    execution_api = urlsplit(environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
    api_command = next(_commands(services["airflow-api-server"]))
    provider = urlsplit(json.loads(environment["AIRFLOW_CONN_LLM_BATCH"])["host"])
    serve_command = next(_commands(services["batch-server"]))
    health = urlsplit(services["batch-server"]["healthcheck"]["test"][-1])

    assert execution_api.hostname == "airflow-api-server"
    assert str(execution_api.port) == api_command[api_command.index("--port") + 1]
    assert execution_api.path == "/execution/"
    assert health.path == HEALTH
    assert health.port == provider.port
    assert provider.hostname == "batch-server"
    assert str(provider.port) == serve_command[serve_command.index("--port") + 1]
    for key in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW_CONN_BATCH_LLM_LEDGER"):
        assert urlsplit(environment[key]).hostname == "postgres"


def test_the_connections_work_with_the_keys_and_databases_of_the_services(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    from airflow.sdk import Connection

    from airflow_batch_llm.hooks.batch_llm import connection_defaults
    from airflow_batch_llm.hooks.state import connection_url

    environment = services["airflow-worker"]["environment"]
    account = connection_defaults(
        Connection(conn_id="llm_batch", **json.loads(environment["AIRFLOW_CONN_LLM_BATCH"]))
    )
    ledger = Connection(conn_id="batch_llm_ledger", uri=environment["AIRFLOW_CONN_BATCH_LLM_LEDGER"])
    created = re.findall(r"CREATE DATABASE (\w+);", compose["configs"]["create_databases"]["content"])

    assert account.api_key == services["batch-server"]["environment"]["BATCH_LLM_SERVER_KEY"]
    assert connection_url(ledger).database in created
    assert f"AIRFLOW_CONN_{environment['AIRFLOW__BATCH_LLM__LEDGER_CONN_ID'].upper()}" in environment


def test_the_ledger_is_migrated_through_the_connection_that_tasks_use(
    services: dict[str, dict[str, Any]],
) -> None:
    environment = services["airflow-worker"]["environment"]

    assert [
        "batch-llm", "db", "migrate", "--conn", environment["AIRFLOW__BATCH_LLM__LEDGER_CONN_ID"],
    ] in list(_commands(services["airflow-init"]))  # fmt: skip


def test_the_examples_tickets_are_loaded_where_the_warehouse_connection_looks(
    services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    from airflow.sdk import Connection

    from airflow_batch_llm.hooks.state import connection_url

    warehouse = Connection(
        conn_id="warehouse", uri=services["airflow-worker"]["environment"]["AIRFLOW_CONN_WAREHOUSE"]
    )
    path = connection_url(warehouse).database or ""
    script = next(c[2] for c in _commands(services["airflow-init"]) if c[:2] == ["python", "-c"])
    assert path in script

    subprocess.run(
        [sys.executable, "-c", script.replace(path, str(tmp_path / "warehouse.db"))], cwd=ROOT, check=True
    )

    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as loaded:
        assert loaded.execute("SELECT count(*) FROM tickets").fetchone()[0] > 100


def test_the_ledger_is_not_airflows_own_database(services: dict[str, dict[str, Any]]) -> None:
    environment = services["airflow-worker"]["environment"]

    assert (
        urlsplit(environment["AIRFLOW_CONN_BATCH_LLM_LEDGER"]).path
        != urlsplit(environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]).path
    )


def test_workspace_and_warehouse_are_on_one_volume_in_every_container_that_runs_tasks(
    airflow_services: dict[str, dict[str, Any]],
) -> None:
    for service in airflow_services.values():
        mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
        environment = service["environment"]
        assert urlsplit(environment["AIRFLOW__BATCH_LLM__WORKSPACE"]).path.startswith(f"{mounts['shared']}/")
        assert f"//{mounts['shared']}/" in environment["AIRFLOW_CONN_WAREHOUSE"]


def test_the_dag_files_are_where_airflow_looks(airflow_services: dict[str, dict[str, Any]]) -> None:
    for service in airflow_services.values():
        assert "./example_dags:/opt/airflow/dags:ro" in service["volumes"]
    assert (ROOT / "example_dags" / "nightly_ticket_labels.py").is_file()


def test_a_key_of_ones_own_reaches_both_sides(raw: dict[str, Any]) -> None:
    own = _resolve(raw, {"BATCH_LLM_KEY": "mine"})["services"]

    assert json.loads(own["airflow-worker"]["environment"]["AIRFLOW_CONN_LLM_BATCH"])["password"] == "mine"
    assert own["batch-server"]["environment"]["BATCH_LLM_SERVER_KEY"] == "mine"
