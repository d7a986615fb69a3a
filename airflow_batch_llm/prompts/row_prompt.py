"""What a DAG file says about how a row becomes a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.core.jsonl import dumps
from airflow_batch_llm.declared import Context, Declared, Renderer, plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, PromptError
from airflow_batch_llm.prompts.columns import body_fault
from airflow_batch_llm.prompts.compiled import (
    Body,
    CompiledPrompt,
    chat_body,
    column_body,
    given_body,
    given_messages,
    plain_chat_body,
    text_body,
    user_message,
)
from airflow_batch_llm.prompts.examples import checked_examples, example_messages, read_examples
from airflow_batch_llm.prompts.files import dag_folder, read_text
from airflow_batch_llm.prompts.images import Image, ImageReader, as_image, image_folder
from airflow_batch_llm.prompts.templates import Rendering, Row, Templates
from airflow_batch_llm.prompts.tools import checked_tools

#: The ways to say what is asked; a prompt has one of them.
_WAYS = ("text", "path", "messages", "body", "body_column")
#: What goes with messages only.
_CONVERSATION = ("system", "examples", "history", "messages", "tools", "tool_choice")
#: Endpoint -> arguments that have no meaning there.
_MEANINGLESS = {
    CHAT: (),
    RESPONSES: (),
    COMPLETIONS: (*_CONVERSATION, "images"),
    EMBEDDINGS: (*_CONVERSATION, "images"),
    MODERATIONS: _CONVERSATION,
}
#: What a text alone is: no conversation.
_INSTEAD = {
    COMPLETIONS: "a completion goes on with one text: write all of it into the text",
    EMBEDDINGS: "an embedding is made of one text: write all of it into the text",
    MODERATIONS: "a moderation looks at one text and images",
}


class RowPrompt(Declared):
    """What is asked about a row.

    :param text: template of the user message.
    :param path: instead of ``text``, a file that holds it, read when the task runs: local (relative to the
        DAG file's folder) or any address of ``ObjectStoragePath``. Templated by Airflow.
    :param system: template of a system message before it.
    :param examples: few-shot examples between the two, each ``{"user": text, "assistant": answer}`` or
        ``{"row": {column: value}, "assistant": answer}``, where ``text`` renders the row. Nothing else in
        them is a template. An answer that is not text is sent as its JSON. A string is the path of a file
        with one such object a line, as ``path``.
    :param history: column that holds earlier messages, as a list of ``{"role": …, "content": …}`` or its
        JSON text; they stand before the user message, or alone where there is no ``text``.
    :param images: images that go along with the text: templates of addresses, and ``Image(…)``.
    :param messages: instead of all these (except ``images`` and ``tools``), a list of
        ``{"role": …, "content": template}``; the content may also be a list of parts, in which every string
        is a template.
    :param tools: functions that the model may call, in chat form.
    :param tool_choice: ``none``, ``auto``, ``required`` or ``{"type": "function", "function": {"name": …}}``.
    :param body: instead of all these, the body of the request as the endpoint's own protocol wants it; every
        string value in it is a template, all else stays as it is.
    :param body_column: instead of ``body``, a column that holds it whole, as an object or its JSON text.
    :param vars: further names for the templates. Their values are templated by Airflow
        (``{"day": "{{ ds }}"}``).
    :raises PromptError: none or several of ``text``, ``path``, ``messages``, ``body`` and ``body_column``
        are given (``history`` and ``images`` may also stand alone), arguments do not go together, or one is
        not of its form.
    """

    def __init__(
        self,
        text: str | None = None,
        *,
        path: str | None = None,
        system: str | None = None,
        examples: Sequence[Mapping[str, Any]] | str | None = None,
        history: str | None = None,
        images: Sequence[str | Image] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        body_column: str | None = None,
        vars: Mapping[str, Any] | None = None,
    ) -> None:
        self.text, self.path, self.system = text, path, system
        self.history, self.body_column = history, body_column
        for name in ("text", "path", "system", "history", "body_column"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise PromptError(f"the prompt's {name} is a {type(value).__name__}, not a string")
            if value == "" and name in ("path", "history", "body_column"):
                raise PromptError(f"the prompt's {name} is empty")
        self.examples = checked_examples(examples)
        self.images = _checked_images(images)
        self.messages = _checked_messages(messages)
        self.tools, self.tool_choice = checked_tools(tools, tool_choice)
        self.body = _checked_body(body)
        self.vars = _checked_vars(vars)
        self._check_combination()

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, [])]

    def _check_combination(self) -> None:
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        if len(ways) > 1 or not (ways or self._given("history", "images")):
            raise PromptError(f"a prompt takes exactly one of {', '.join(_WAYS)}")
        if self.messages is not None:
            beside = self._given("system", "examples", "history")
            if beside:
                raise PromptError(f"a prompt with messages takes no {beside[0]}: it is one of the messages")
            if self.images and self.messages[-1]["role"] != "user":
                raise PromptError("images go to the last message, which must be the user's")
        if self.body is not None or self.body_column is not None:
            beside = self._given("system", "examples", "history", "images", "tools", "tool_choice")
            if beside:
                raise PromptError(f"a prompt with a body takes no {beside[0]}: it is part of the body")

    def serialize(self) -> dict[str, Any]:
        """Return the arguments as written."""
        return {
            "type": "row_prompt",
            "text": self.text,
            "path": self.path,
            "system": self.system,
            "examples": self.examples,
            "history": self.history,
            "images": [image.serialize() for image in self.images] or None,
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "body": self.body,
            "body_column": self.body_column,
            "vars": plain_argument(self.vars, "prompt vars") or None,
        }

    def _templated(self) -> Iterable[Any]:
        return (self.vars,)

    def resolve(self, context: Context, endpoint: str = CHAT) -> CompiledPrompt:
        """Read the files, render ``vars`` and compile the templates for an endpoint.

        :raises PromptError: a template does not compile or names what there is not, a file is missing or
            malformed, or an argument has no meaning at the endpoint.
        """
        unfit = self._given(*_MEANINGLESS[endpoint])
        if unfit:
            raise PromptError(
                f"the prompt has {unfit[0]}, and the endpoint is {endpoint}: {_INSTEAD[endpoint]}"
            )
        templates = Templates(Renderer(context)(self.vars))
        make, shared = self._maker(context, endpoint, templates)
        return CompiledPrompt(templates, make, shared_messages=shared)

    def _maker(
        self, context: Context, endpoint: str, templates: Templates
    ) -> tuple[Callable[[Row], Body], int]:
        """Return what makes a body, and how many messages at its beginning are the same for all rows."""
        if self.body_column is not None:
            templates.note_column(self.body_column)
            return column_body(self.body_column, endpoint), 0
        if self.body is not None:
            fault = body_fault(self.body, endpoint)
            if fault:
                raise PromptError(f"the prompt's body {fault}")
            return given_body(templates.compile(self.body, "the body")), 0
        images = [self._reader(image, i, context, templates, endpoint) for i, image in enumerate(self.images)]
        if self.messages is not None:
            compiled = [_compiled(m, i, templates) for i, m in enumerate(self.messages)]
            alike = takewhile(lambda message: message[1].constant, compiled[:-1])
            made = chat_body(None, (), None, given_messages(compiled, images), self._members())
            return made, sum(1 for _ in alike)
        text = self._text(context)
        said = templates.compile(text, "the prompt") if text is not None else None
        if endpoint not in (CHAT, RESPONSES):
            return text_body(endpoint, said, images), 0
        return self._conversation(context, templates, said, images)

    def _conversation(
        self,
        context: Context,
        templates: Templates,
        said: Rendering | None,
        images: Sequence[ImageReader],
    ) -> tuple[Callable[[Row], Body], int]:
        system = templates.compile(self.system, "the system message") if self.system is not None else None
        examples = self.examples
        if isinstance(examples, str):
            examples = read_examples(Renderer(context).text(examples, "the path of the examples"), context)
        shown = example_messages(examples or (), templates, said)
        members = self._members()
        # What follows a message that differs from row to row is shared no more.
        alike = len(shown) + (system is not None) if system is None or system.constant else 0
        if self.history is not None:
            templates.note_column(self.history)
        elif said is not None and not images and not members and (system is None or system.constant):
            first = [{"role": "system", "content": system.value}] if system is not None else []
            return plain_chat_body([*first, *shown], said), alike
        user = user_message(said, images) if said is not None or images else None
        return chat_body(system, shown, self.history, user, members), alike

    def _members(self) -> dict[str, Any]:
        members = {"tools": self.tools, "tool_choice": self.tool_choice}
        return {name: value for name, value in members.items() if value is not None}

    def _text(self, context: Context) -> str | None:
        if self.path is None:
            return self.text
        return read_text(Renderer(context).text(self.path, "the prompt's path"), context, "prompt file")

    def _reader(
        self, image: Image, number: int, context: Context, templates: Templates, endpoint: str
    ) -> ImageReader:
        where = f"image {number} of the prompt"
        if image.detail is not None and endpoint == MODERATIONS:
            raise PromptError(f"{where} has a detail, which {endpoint} does not know")
        within = Renderer(context).text(image.within, f"within of {where}") if image.within else None
        folder = dag_folder(context)
        return ImageReader(image, templates, where, within=image_folder(image, within, folder), folder=folder)


def _compiled(
    message: Mapping[str, Any], number: int, templates: Templates
) -> tuple[dict[str, Any], Rendering]:
    rest = {name: value for name, value in message.items() if name != "content"}
    return rest, templates.compile(message["content"], f"message {number} ({rest['role']}) of the prompt")


def _checked_images(images: Any) -> list[Image]:
    if images is None:
        return []
    if not isinstance(images, (list, tuple)):
        raise PromptError(f"the prompt's images are a {type(images).__name__}, not a list")
    return [as_image(image, number) for number, image in enumerate(images)]


def _checked_messages(messages: Any) -> list[dict[str, Any]] | None:
    if messages is None:
        return None
    if not isinstance(messages, (list, tuple)) or not messages:
        raise PromptError('the prompt\'s messages must be a list of {"role": …, "content": …}')
    return [_checked_message(message, number) for number, message in enumerate(messages)]


def _checked_message(message: Any, number: int) -> dict[str, Any]:
    if (
        not isinstance(message, Mapping)
        or not isinstance(message.get("role"), str)
        or "content" not in message
    ):
        raise PromptError(f'message {number} of the prompt is not of the form {{"role": …, "content": …}}')
    return _plain(message, f"message {number} of the prompt")


def _checked_body(body: Any) -> dict[str, Any] | None:
    if body is None:
        return None
    if not isinstance(body, Mapping) or not body:
        raise PromptError("the prompt's body must be an object of the members that the endpoint takes")
    plain = _plain(body, "the prompt's body")
    if plain.get("stream"):
        raise PromptError("the prompt's body has 'stream': a batch cannot stream its answers")
    if plain.get("n", 1) != 1:
        raise PromptError("the prompt's body has 'n': one answer per request is read; give samples= for more")
    return plain


def _checked_vars(variables: Any) -> dict[str, Any]:
    if variables is not None and not isinstance(variables, Mapping):
        raise PromptError(f"the prompt's vars are a {type(variables).__name__}, not a mapping of names")
    found = dict(variables or {})
    for name in found:
        if not isinstance(name, str) or name == "row" or not name.isidentifier():
            raise PromptError(f"{name!r} cannot be a name in prompt vars")
        plain_argument(found[name], f"prompt vars[{name!r}]")
    return found


def _plain(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = plain_argument(value, what)
        dumps(plain)
    except ConfigurationError as e:
        raise PromptError(e.args[0]) from None
    except ValueError:
        raise PromptError(f"{what} cannot be written as JSON") from None
    return plain
