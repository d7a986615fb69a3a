"""Few-shot examples: pairs of what a user says and what the assistant answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_batch_llm.core.jsonl import dumps, iter_lines, loads
from airflow_batch_llm.declared import Context, plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, PromptError
from airflow_batch_llm.prompts.files import read_file
from airflow_batch_llm.prompts.templates import Rendering, Row, Templates

_FORM = '{"user": …, "assistant": …} or {"row": {…}, "assistant": …}'


def checked_examples(examples: Any) -> list[dict[str, Any]] | str | None:
    """Return the ``examples`` of a prompt as JSON types; a text is the path of a file of them.

    :raises PromptError: one is not of the form.
    """
    if examples is None or isinstance(examples, str):
        if examples == "":
            raise PromptError("the path of the prompt's examples is empty")
        return examples
    if not isinstance(examples, (list, tuple)):
        raise PromptError(f"the prompt's examples are a {type(examples).__name__}, not a list or a path")
    try:
        plain = plain_argument(examples, "examples")
    except ConfigurationError as e:
        raise PromptError(f"the prompt's {e.args[0]}") from None
    return [_checked(example, f"example {number}") for number, example in enumerate(plain)]


def read_examples(path: str, context: Context) -> list[dict[str, Any]]:
    """Read a file of examples, one JSON object a line.

    :raises PromptError: there is no such file, or a line is not of the form; it is named.
    """
    found = []
    for number, line in iter_lines([read_file(path, context, "examples file")]):
        where = f"line {number} of examples file {path}"
        try:
            example = loads(line)
        except ValueError:
            raise PromptError(f"{where} is no JSON") from None
        found.append(_checked(example, where))
    if not found:
        raise PromptError(f"examples file {path} is empty")
    return found


def example_messages(
    examples: Sequence[Mapping[str, Any]], templates: Templates, text: Rendering | None
) -> list[dict[str, Any]]:
    """Return the messages of examples, the same for every row.

    :param text: the prompt's own text, which makes the user's part of an example that is given as a row.
    :raises PromptError: a row does not go through the text, or there is no text.
    """
    return list(_messages(examples, templates, text))


def _messages(
    examples: Iterable[Mapping[str, Any]], templates: Templates, text: Rendering | None
) -> Iterator[dict[str, Any]]:
    for number, example in enumerate(examples):
        said = example.get("user")
        if said is None:
            row = example["row"]
            if text is None:
                raise PromptError(f"example {number} is a row, and the prompt has no text to render it with")
            try:
                said = text.render(Row(row))
            except Exception as e:
                raise PromptError(templates.explained(e, row, f"example {number}").args[0]) from None
        answer = example["assistant"]
        yield {"role": "user", "content": said}
        yield {"role": "assistant", "content": answer if isinstance(answer, str) else _json_text(answer)}


def _json_text(answer: Any) -> str:
    return dumps(answer).decode("utf-8")


def _checked(example: Any, where: str) -> dict[str, Any]:
    if not isinstance(example, dict) or set(example) not in ({"user", "assistant"}, {"row", "assistant"}):
        raise PromptError(f"{where} is not of the form {_FORM}")
    if "row" in example and not isinstance(example["row"], dict):
        raise PromptError(f"{where}: its row is a {type(example['row']).__name__}, not columns")
    if "user" in example and (not isinstance(example["user"], (str, list)) or not example["user"]):
        raise PromptError(f"{where}: what the user says must be a text or a list of content parts")
    if example["assistant"] is None or example["assistant"] == "":
        raise PromptError(f"{where}: the assistant says nothing")
    try:
        dumps(example)
    except ValueError:
        raise PromptError(f"{where} holds half a surrogate pair, which cannot be sent") from None
    return example
