"""The documentation says what the code does: generated parts, codes, links, and every example parses."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_batch_llm import exceptions
from airflow_batch_llm.cli.main import build_parser
from airflow_batch_llm.core.drafts import Answer
from airflow_batch_llm.core.files import Member, Refusal
from airflow_batch_llm.core.model import Outcome, Request
from airflow_batch_llm.core.plan_files import Duplicate, Reused
from airflow_batch_llm.core.verdicts import Disposition, Verdict
from airflow_batch_llm.get_provider_info import get_provider_info

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "airflow_batch_llm").rglob("*.py")))

#: Programs that examples call and that are not ours.
OTHER_PROGRAMS = {"docker", "airflow", "pip", "export", "sqlite3", "curl"}


@pytest.fixture(scope="module")
def generate() -> Iterator[Any]:
    """The script that writes the generated parts."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate

        yield generate
    finally:
        sys.path.remove(str(ROOT / "docs"))


@dataclass(frozen=True)
class Example:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(*languages: str) -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: block.start()].count("\n") + 1
            found.append(Example(page, line, block[1], block[2]))
    return [example for example in found if example.language in languages]


# -- generated parts -------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_what_the_code_decides(page: Path, generate: Any) -> None:
    text = page.read_text()

    assert generate.written(text) == text, "run: python docs/generate.py"


def test_every_generated_part_is_on_some_page(generate: Any) -> None:
    assert generate.used_parts() == set(generate.PARTS)


def test_a_stale_page_is_found_and_mended(generate: Any) -> None:
    text = "before\n<!-- generated: verdicts -->\nold\n<!-- end -->\nafter\n"

    mended = generate.written(text)

    assert "old" not in mended and "`invalid_output`" in mended
    assert mended.startswith("before\n") and mended.endswith("<!-- end -->\nafter\n")
    assert generate.written(mended) == mended


def test_every_public_block_has_its_parameters_documented(generate: Any) -> None:
    import airflow_batch_llm

    public = set(airflow_batch_llm.__all__) - {"__version__"}
    without_own = {"BatchLLMOperator", "BatchLLMReconcileOperator", "BatchLLMRetryOperator"}

    assert public - without_own <= set(generate.BLOCKS)
    for name in without_own:
        assert "__init__" not in vars(getattr(airflow_batch_llm, name)), f"{name} has parameters of its own"


def test_every_parameter_of_a_signature_is_a_row_of_its_table(generate: Any) -> None:
    for name, block in generate.BLOCKS.items():
        target = block.__init__ if isinstance(block, type) else block
        wanted = [
            parameter.name
            for parameter in inspect.signature(inspect.unwrap(target)).parameters.values()
            if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        assert re.findall(r"^\| `(\w+)` \|", generate.parameter_table(name), re.MULTILINE) == wanted


def test_the_pages_tell_all_verdicts_and_dispositions() -> None:
    page = (ROOT / "docs" / "verdicts.md").read_text()

    for word in (*Verdict, *Disposition):
        assert f"| `{word}` |" in page


# -- the runbook -----------------------------------------------------------------------------------
def _headings(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def test_every_code_in_the_code_is_a_heading_of_the_runbook_and_the_other_way_round() -> None:
    headings = [heading for heading in _headings(ROOT / "docs" / "runbook.md") if heading.startswith("BLLM-")]

    assert len(headings) == len(set(headings))
    assert set(headings) == set(re.findall(r"BLLM-\d{3}", SOURCE))


def _error_classes() -> list[type[exceptions.BatchLLMError]]:
    classes = [value for value in vars(exceptions).values() if isinstance(value, type)]
    return [value for value in classes if issubclass(value, exceptions.BatchLLMError)]


def test_the_runbook_says_of_each_code_what_was_paid_and_what_to_do() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    sections = dict(re.findall(r"^### (BLLM-\d{3})\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))

    for code, section in sections.items():
        assert "**Paid:**" in section and "**Do:**" in section, code
    for error in _error_classes():
        section = sections[error.code]
        if not error.deterministic:
            assert "*Retried" in section, f"{error.code} is retried"
        elif not issubclass(
            error, exceptions.JobHalted | exceptions.DeadLetterLimit | exceptions.AccountingError
        ):
            assert re.search(r"\*(F|f)ails\s+at\s+once\*|\*Fails\s+at\s+once", section), (
                f"{error.code} fails at once"
            )


# -- links -----------------------------------------------------------------------------------------
def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{page.name}: {target}"
        assert found.is_relative_to(ROOT)
        if anchor:
            assert anchor in {_anchor(heading) for heading in _headings(found)}, f"{page.name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()

    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index


# -- examples --------------------------------------------------------------------------------------
def test_every_example_is_of_a_language_that_is_checked() -> None:
    known = {"python", "json", "jsonl", "sh", "sql", "ini", "text", ""}

    assert {example.language for example in examples(*known)} <= known
    fences = sum(len(re.findall(r"^```", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(examples(*known)), "a fence is not closed, or of another language"


def _commands() -> Iterator[Any]:
    for example in examples("sh", ""):
        for line in example.text.splitlines():
            # Blocks without a language also show what a command prints.
            if example.language == "sh" or re.match(r"(make|batch-llm) [\w-]+( |$)", line):
                yield pytest.param(line, id=f"{example}: {line[:40]}")


@pytest.mark.parametrize("line", list(_commands()))
def test_commands_are_ones_that_exist(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        # `make demo MODEL=local`: a variable of the Makefile beside the target.
        (target,) = (word for word in arguments if "=" not in word)
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "batch-llm":
        parser, _ = build_parser(arguments[0])
        parser.parse_args(arguments)
    else:
        assert program in OTHER_PROGRAMS


def test_the_call_that_changes_the_scenario_can_be_made() -> None:
    from airflow_batch_llm.server.scenario import Scenario

    lines = [line for example in examples("sh") for line in example.text.splitlines()]
    (call,) = [shlex.split(line) for line in lines if line.startswith("curl ")]

    assert call[1:3] == ["-X", "PUT"] and call[3].endswith("/admin/scenario")
    assert call[4:6] == ["-H", "Authorization: Bearer its-key"]
    assert call[6] == "-d" and Scenario.model_validate_json(call[7]).rows


@pytest.mark.parametrize("example", examples("sh"), ids=str)
def test_extras_that_are_installed_exist(example: Example) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"pip install \"\.\[([\w,]+)\]\"", example.text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("example", examples("python"), ids=str)
def test_python_examples_compile(example: Example) -> None:
    compile(example.text, str(example), "exec")


@pytest.mark.parametrize("example", examples("json"), ids=str)
def test_json_examples_parse(example: Example) -> None:
    document = json.loads(example.text)

    if example.page.name == "local_server.md":
        from airflow_batch_llm.server.scenario import Scenario

        Scenario.model_validate(document)


#: Heading -> what its lines are.
_LINES: dict[str, type[msgspec.Struct]] = {
    "plan-…/rows.jsonl": Member,
    "plan-…/refused.jsonl": Refusal,
    "plan-…/duplicates.jsonl": Duplicate,
    "plan-…/reused.jsonl": Reused,
    "plan-…/batch-…/requests.jsonl": Request,
    "batch/…/outcomes-….jsonl": Outcome,
    "results/…/part-….jsonl": Answer,
}


@pytest.mark.parametrize("heading", _LINES)
def test_lines_of_the_workspace_page_are_of_their_format(heading: str) -> None:
    page = (ROOT / "docs" / "workspace.md").read_text()
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    block = re.search(r"^```jsonl\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block is not None

    for line in block[1].splitlines():
        value = msgspec.json.decode(line, type=_LINES[heading])
        assert msgspec.json.decode(msgspec.json.encode(value)) == json.loads(line), "an unknown field"


def test_the_page_of_the_workspace_shows_a_line_of_every_format() -> None:
    assert sum(example.page.name == "workspace.md" for example in examples("jsonl")) == len(_LINES)


@pytest.mark.parametrize("example", examples("ini"), ids=str)
def test_settings_in_examples_exist(example: Example) -> None:
    parser = ConfigParser()
    parser.read_string(example.text)

    assert parser.sections() == ["batch_llm"]
    assert set(parser["batch_llm"]) <= set(get_provider_info()["config"]["batch_llm"]["options"])
