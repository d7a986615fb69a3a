"""A prompt that is ready to render rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_batch_llm.core.endpoints import COMPLETIONS
from airflow_batch_llm.prompts.columns import BODY_SHAPE, HISTORY_SHAPE, body_of, history_of
from airflow_batch_llm.prompts.faults import RowFault
from airflow_batch_llm.prompts.images import ImageReader
from airflow_batch_llm.prompts.templates import Rendering, Row, Templates

Body = dict[str, Any]
#: Makes the messages of a row.
Messages = Callable[[Row], list[Any]]


class CompiledPrompt:
    """Renders rows into caller-level bodies for one endpoint. Holds no state between rows.

    :param make: the body of a row.
    :param shared_messages: how many messages at the beginning of every body are the same for all rows.
    """

    def __init__(
        self, templates: Templates, make: Callable[[Row], Body], *, shared_messages: int = 0
    ) -> None:
        self._templates = templates
        self._make = make
        self.shared_messages = shared_messages

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the prompt names literally."""
        return self._templates.columns

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns that can matter to a body, None where any may."""
        return self._templates.reads

    def body(self, row: Mapping[str, Any], label: str = "") -> Body:
        """Render the body for a row.

        :param row: column name -> value.
        :param label: how errors name the row: its id, its place in the source.
        :raises PromptError: the row lacks a column that the prompt names, or a template does what the
            sandbox forbids: the prompt is wrong.
        :raises UnrenderableRow: this row's values are at fault.
        :raises FileUnavailable: the storage of an image does not answer.
        """
        try:
            return self._make(Row(row))
        except Exception as e:
            raise self._templates.explained(e, row, label or "a row") from None


def chat_body(
    system: Rendering | None,
    examples: Sequence[Mapping[str, Any]],
    history: str | None,
    user: Messages | None,
    members: Mapping[str, Any],
) -> Callable[[Row], Body]:
    """Return what makes a body of messages: system, examples, history, user, in this order.

    :param history: column that holds messages.
    :param user: what is said at last; None where the history says it all.
    :param members: further members of the body, the same for every row.
    """
    head: list[Any] = list(examples)
    if system is not None and system.constant:
        head.insert(0, {"role": "system", "content": system.value})
        system = None

    def make(row: Row) -> Body:
        messages = list(head)
        if system is not None:
            messages.insert(0, {"role": "system", "content": system.render(row)})
        if history is not None:
            said = history_of(row, history)
            if not said and user is None:
                raise RowFault(HISTORY_SHAPE, "the history is empty, and nothing else is asked")
            messages += said
        if user is not None:
            messages += user(row)
        return {"messages": messages, **members}

    return make


def plain_chat_body(head: Sequence[Any], text: Rendering) -> Callable[[Row], Body]:
    """Return what makes the commonest body: the same messages for all, then the row's text."""
    render = text.render
    if not head:
        return lambda row: {"messages": [{"role": "user", "content": render(row)}]}
    return lambda row: {"messages": [*head, {"role": "user", "content": render(row)}]}


def user_message(text: Rendering | None, images: Sequence[ImageReader]) -> Messages:
    """Return what makes the user's message of a text and images."""
    if not images:
        assert text is not None
        render = text.render
        return lambda row: [{"role": "user", "content": render(row)}]
    parts = content_parts(text, images)
    return lambda row: [{"role": "user", "content": parts(row)}]


def content_parts(text: Rendering | None, images: Sequence[ImageReader]) -> Callable[[Row], list[Any]]:
    """Return what makes the parts of a content: the text, where it says anything, then the images."""

    def parts(row: Row) -> list[Any]:
        said = text.render(row) if text is not None else ""
        found: list[Any] = [{"type": "text", "text": said}] if said else []
        for image in images:
            found += image.parts(row)
        return found

    return parts


def given_messages(
    messages: Sequence[tuple[Mapping[str, Any], Rendering]], images: Sequence[ImageReader]
) -> Messages:
    """Return what makes messages that the author wrote; images go to the end of the last one."""

    def make(row: Row) -> list[Any]:
        found: list[Any] = [{**rest, "content": content.render(row)} for rest, content in messages]
        for image in images:
            last = found[-1]["content"]
            parts = [{"type": "text", "text": last}] if isinstance(last, str) else list(last)
            found[-1]["content"] = [*parts, *image.parts(row)]
        return found

    return make


def text_body(endpoint: str, text: Rendering | None, images: Sequence[ImageReader]) -> Callable[[Row], Body]:
    """Return what makes the body of an endpoint that takes one text (moderations: also images)."""
    member = "prompt" if endpoint == COMPLETIONS else "input"
    if images:
        parts = content_parts(text, images)
        return lambda row: {member: parts(row)}
    assert text is not None
    render = text.render
    return lambda row: {member: render(row)}


def given_body(written: Rendering) -> Callable[[Row], Body]:
    """Return what makes a body that the author wrote in the endpoint's own form."""

    def make(row: Row) -> Body:
        body: Body = written.render(row)
        if body.get("model", "one") == "":
            raise RowFault(BODY_SHAPE, "the body names no model")
        return body

    return make


def column_body(column: str, endpoint: str) -> Callable[[Row], Body]:
    """Return what takes the body from a column."""
    return lambda row: body_of(row, column, endpoint)
