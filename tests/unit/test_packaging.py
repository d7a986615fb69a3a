"""What users install: the wheel's files, the provider's description, the command, the pinned versions."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import import_module, resources
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from airflow_batch_llm import __version__
from airflow_batch_llm.backends import providers
from airflow_batch_llm.cli import main as cli
from airflow_batch_llm.exceptions import ConfigurationError
from airflow_batch_llm.get_provider_info import get_provider_info

ROOT = Path(__file__).resolve().parents[2]
INFO = get_provider_info()
CONNECTION = INFO["connection-types"][0]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as opened:
        yield opened


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tracked = subprocess.run(
        ["git", "ls-files", "airflow_batch_llm"], cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert {name.partition("/")[0] for name in names} == {
        "airflow_batch_llm",
        f"airflow_batch_llm-{__version__}.dist-info",
    }
    assert set(tracked.stdout.split()) <= set(names)
    assert "airflow_batch_llm/py.typed" in names
    assert any(re.fullmatch(r"airflow_batch_llm/storage/migrations/versions/\w+\.py", name) for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    folder = f"airflow_batch_llm-{__version__}.dist-info"
    metadata = wheel.read(f"{folder}/METADATA").decode()

    assert "Name: airflow-batch-llm\n" in metadata
    assert f"Version: {__version__}\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert "Apache License" in wheel.read(f"{folder}/licenses/LICENSE").decode()
    entry_points = ConfigParser()
    entry_points.read_string(wheel.read(f"{folder}/entry_points.txt").decode())
    assert {section: dict(entry_points[section]) for section in entry_points.sections()} == {
        "apache_airflow_provider": {"provider_info": "airflow_batch_llm.get_provider_info:get_provider_info"},
        "console_scripts": {"batch-llm": "airflow_batch_llm.cli.main:main"},
    }


def test_the_installed_distribution_offers_the_provider_and_the_command() -> None:
    points = {(point.group, point.value) for point in distribution("airflow-batch-llm").entry_points}

    assert points == {
        ("apache_airflow_provider", "airflow_batch_llm.get_provider_info:get_provider_info"),
        ("console_scripts", "airflow_batch_llm.cli.main:main"),
    }


#: Extras whose packages the package itself imports, where they are installed.
_AT_RUN_TIME = ("sqlite", "postgres", "mysql", "parquet", "pandas", "local")


def test_every_package_imported_at_run_time_is_declared(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    declared = {
        canonicalize_name(Requirement(line).name)
        for line in sum((extras[name] for name in _AT_RUN_TIME), project["dependencies"])
    }
    distributions = packages_distributions()
    imported = set().union(*(_imports(path) for path in (ROOT / "airflow_batch_llm").rglob("*.py")))
    third_party = imported - sys.stdlib_module_names - {"airflow_batch_llm"}

    assert "airflow" in third_party
    for name in sorted(third_party):
        offered_by = {canonicalize_name(one) for one in distributions[name]}
        assert offered_by & declared, f"{name} is imported, and none of {offered_by} is declared"


def _imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_the_provider_description_has_the_form_airflow_asks_for() -> None:
    schema = resources.files("airflow") / "provider_info.schema.json"

    jsonschema.validate(INFO, json.loads(schema.read_text()))
    assert INFO["package-name"] == canonicalize_name(distribution("airflow-batch-llm").name)


def test_every_module_and_class_in_the_provider_description_exists() -> None:
    modules = [
        module
        for kind in ("hooks", "operators", "triggers")
        for entry in INFO[kind]
        for module in entry["python-modules"]
    ]
    hook_module, _, hook_class = CONNECTION["hook-class-name"].rpartition(".")

    for module in modules:
        import_module(module)
    assert hook_module in modules
    hook = getattr(import_module(hook_module), hook_class)
    assert hook.conn_type == CONNECTION["connection-type"]
    assert hook.hook_name == CONNECTION["hook-name"]


def test_every_operator_and_trigger_module_is_in_the_provider_description() -> None:
    for kind in ("operators", "triggers"):
        listed = {module for entry in INFO[kind] for module in entry["python-modules"]}
        for path in (ROOT / "airflow_batch_llm" / kind).glob("*.py"):
            public = re.findall(r"^class (BatchLLM\w+(?:Operator|Trigger))\(", path.read_text(), re.MULTILINE)
            if public and path.stem != "base":
                assert f"airflow_batch_llm.{kind}.{path.stem}" in listed


def test_the_form_offers_the_providers_there_are() -> None:
    assert CONNECTION["conn-fields"]["dialect"]["schema"]["enum"] == list(providers())


def test_every_setting_of_the_section_is_read_and_has_a_usable_default() -> None:
    from airflow_batch_llm.hooks.settings import Settings, read_settings

    declared = INFO["config"]["batch_llm"]["options"]

    assert set(declared) == set(Settings.model_fields)
    settings = read_settings()
    assert settings.first_poll_delay == 10
    assert (settings.poll_interval_min, settings.poll_interval_max) == (15, 300)
    assert settings.allow_local_state is False
    assert settings.ledger_conn_id == settings.workspace == ""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("CREATE_TIMEOUT", "soon"),
        ("POLL_INTERVAL_MIN", "0"),
        ("FIND_INTERVAL", "-1"),
        ("ALLOW_LOCAL_STATE", "maybe"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    from airflow_batch_llm.hooks.settings import read_settings

    monkeypatch.setenv(f"AIRFLOW__BATCH_LLM__{option}", value)

    with pytest.raises(ConfigurationError, match=option.lower()):
        read_settings()


def test_an_interval_that_ends_before_it_begins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_batch_llm.hooks.settings import read_settings

    monkeypatch.setenv("AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX", "5")

    with pytest.raises(ConfigurationError, match="poll_interval_max"):
        read_settings()


@pytest.mark.parametrize(
    "module",
    [
        "airflow_batch_llm.get_provider_info",
        "airflow_batch_llm.cli.main",
        "airflow_batch_llm",
    ],
)
def test_what_every_airflow_command_imports_is_light(module: str) -> None:
    script = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env={**os.environ}
    ).stdout.split()

    assert "airflow_batch_llm" in loaded
    assert not {"airflow", "sqlalchemy", "pydantic", "httpx", "fastapi", "alembic"} & set(loaded)


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])

    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"airflow-batch-llm {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_a_line_without_a_known_command_is_refused_with_a_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)

    assert stopped.value.code == 2
    assert "usage: batch-llm" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "refusing_command.py").write_text(
        "from airflow_batch_llm.exceptions import ConfigurationError\n"
        "def add_parser(subparsers):\n    subparsers.add_parser('refuse')\n"
        "def run(args):\n    raise ConfigurationError('the folder is a file')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.COMMANDS, "refuse", ("refusing_command", "refuses"))

    assert cli.main(["refuse"]) == 2
    assert capsys.readouterr().err == "batch-llm: [BLLM-001] the folder is a file\n"


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_subcommand_has_a_help_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])

    assert stopped.value.code == 0
    assert f"usage: batch-llm {command}" in capsys.readouterr().out


def test_pinned_versions_are_plain_and_cover_all_that_is_declared(project: dict[str, Any]) -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text().split("\n")[:-1]
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    for line in [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name != "airflow-batch-llm":
            assert requirement.specifier.contains(pins[name]), line


def test_ci_and_make_start_from_the_same_place() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert os.access(ROOT / ".ci" / "venv", os.X_OK)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
