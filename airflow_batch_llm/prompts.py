"""Prompts: one Jinja template per message, rendered once for every row, in a sandbox.

The text is never rendered by Airflow: ``{{ row.body }}`` means a column of the source, and a ticket
whose text holds ``{{ … }}`` stays text. A column is ``{{ row.body }}`` or ``{{ row["body"] }}``, also
where its name is that of a method (``items``). A value that is None renders as nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airflow_batch_llm.declared import Context, Declared, Renderer, plain_argument
from airflow_batch_llm.exceptions import ConfigurationError, PromptError

_FILE_STATEMENTS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class RowPrompt(Declared):
    """What is asked about a row.

    :param text: template of the user message.
    :param path: instead of ``text``, a file that holds it, read when the task runs: local (relative to
        the DAG file's folder) or any address of ``ObjectStoragePath``. Templated by Airflow.
    :param system: template of a system message before it.
    :param messages: instead of all these, a list of ``{"role": …, "content": template}``; the content may
        also be a list of parts, in which every string is a template.
    :param vars: further names for the templates. Their values are templated by Airflow
        (``{"day": "{{ ds }}"}``).
    :raises PromptError: not exactly one of ``text``, ``path`` and ``messages`` is given, or a message is
        not of that form.
    """

    def __init__(
        self,
        text: str | None = None,
        *,
        path: str | None = None,
        system: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        vars: Mapping[str, Any] | None = None,
    ) -> None:
        if sum(part is not None for part in (text, path, messages)) != 1:
            raise PromptError("a prompt takes exactly one of text, path and messages")
        if messages is not None and system is not None:
            raise PromptError("a prompt with messages takes its system message as one of them")
        for name, value in (("text", text), ("path", path), ("system", system)):
            if value is not None and not isinstance(value, str):
                raise PromptError(f"the prompt's {name} is a {type(value).__name__}, not a string")
        if messages is not None and (not isinstance(messages, (list, tuple)) or not messages):
            raise PromptError('the prompt\'s messages must be a list of {"role": …, "content": …}')
        if vars is not None and not isinstance(vars, Mapping):
            raise PromptError(f"the prompt's vars are a {type(vars).__name__}, not a mapping of names")
        self.text = text
        self.path = path
        self.system = system
        self.messages = None if messages is None else [_checked_message(m, i) for i, m in enumerate(messages)]
        self.vars = dict(vars or {})
        for name in self.vars:
            if not isinstance(name, str) or name == "row" or not name.isidentifier():
                raise PromptError(f"{name!r} cannot be a name in prompt vars")
            plain_argument(self.vars[name], f"prompt vars[{name!r}]")

    def serialize(self) -> dict[str, Any]:
        """Return the templates as written."""
        return {
            "type": "row_prompt",
            "text": self.text,
            "path": self.path,
            "system": self.system,
            "messages": self.messages,
            "vars": plain_argument(self.vars, "prompt vars") or None,
        }

    def _templated(self) -> Iterable[Any]:
        return (self.vars,)

    def resolve(self, context: Context) -> CompiledPrompt:
        """Read the file if there is one, render ``vars`` and compile the templates.

        :raises PromptError: a template does not compile or names what there is not, or there is no file.
        """
        render = Renderer(context)
        if self.messages is not None:
            messages = self.messages
        else:
            text = self.text
            if self.path is not None:
                text = _read_template(render.text(self.path, "the prompt's path"), context)
            messages = [{"role": "user", "content": text}]
            if self.system is not None:
                messages.insert(0, {"role": "system", "content": self.system})
        return CompiledPrompt(messages, render(self.vars))


class UnrenderableRow(PromptError):
    """One row's values cannot go through the template or onto the wire. Only that row is at fault.

    ``fault`` is its short code: ``unencodable_text`` or ``prompt_failed``.
    """

    def __init__(self, message: str, *, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class CompiledPrompt:
    """A prompt that is ready to render rows. Holds no state between rows."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> None:
        self._environment = _PromptEnvironment()
        self._columns: set[str] = set()
        known = {"row", *variables}
        self._environment.globals.update(variables)
        self._parts: list[tuple[dict[str, Any], Callable[[Row], Any]]] = []
        for i, message in enumerate(messages):
            rest = {k: v for k, v in message.items() if k != "content"}
            where = "the prompt" if len(messages) == 1 else f"message {i} ({rest['role']}) of the prompt"
            self._parts.append((rest, self._compile(message["content"], known, where)))

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the templates name literally."""
        return frozenset(self._columns)

    def body(self, row: Mapping[str, Any], label: str = "") -> dict[str, Any]:
        """Render the messages for a row.

        :param row: column name -> value.
        :param label: how errors name the row: its id, its place in the source.
        :raises PromptError: the row lacks a column that a template names, or a template does what the
            sandbox forbids: the prompt is wrong.
        :raises UnrenderableRow: this row's values are at fault.
        """
        wrapped = Row(row)
        try:
            return {"messages": [{**rest, "content": render(wrapped)} for rest, render in self._parts]}
        except UnicodeEncodeError:
            raise UnrenderableRow(
                f"{label or 'a row'}: the prompt would hold half a surrogate pair", fault="unencodable_text"
            ) from None
        except Exception as e:
            raise self._explained(e, row, label or "a row") from None

    def _compile(self, content: Any, known: set[str], where: str) -> Callable[[Row], Any]:
        if isinstance(content, str):
            return self._compile_text(content, known, where)
        if isinstance(content, Mapping):
            parts = {k: self._compile(v, known, where) for k, v in content.items()}
            return lambda row: {k: render(row) for k, render in parts.items()}
        if isinstance(content, (list, tuple)):
            items = [self._compile(v, known, where) for v in content]
            return lambda row: [render(row) for render in items]
        return lambda row: content

    def _compile_text(self, text: str, known: set[str], where: str) -> Callable[[Row], str]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise PromptError(f"{where} holds half a surrogate pair, which cannot be sent") from None
        try:
            tree = self._environment.parse(text)
            template = self._environment.from_string(tree)
        except TemplateSyntaxError as e:
            raise PromptError(f"{where} does not compile, line {e.lineno}: {e.message}") from None
        if next(tree.find_all(_FILE_STATEMENTS), None) is not None:
            raise PromptError(f"{where} includes another template; prompts stand alone")
        unknown = sorted(meta.find_undeclared_variables(tree) - known - set(self._environment.globals))
        if unknown:
            raise PromptError(
                f"{where} uses unknown names {unknown}; a column is written row.<column>, "
                f"other names must be in vars (there: {sorted(known)})"
            )
        self._columns.update(_column_names(tree))
        root, new_context, concat = template.root_render_func, template.new_context, self._environment.concat
        names = dict(self._environment.globals)

        def render(row: Row) -> str:
            # Shared: the names are complete; Jinja would otherwise merge its globals in for every row.
            rendered: str = concat(root(new_context({**names, "row": row}, shared=True)))
            if not rendered.isascii():
                rendered.encode("utf-8")
            return rendered

        return render

    def _explained(self, error: Exception, row: Mapping[str, Any], label: str) -> PromptError:
        """Say what went wrong without quoting values: names are told only where the author wrote them."""
        line = _template_line(error.__traceback__)
        at = f"line {line} of the prompt" if line else "the prompt"
        if isinstance(error, SecurityError):
            return PromptError(f"{label}: {at} does what prompts are not allowed to do")
        if isinstance(error, _MissingColumnError):
            column = error.column if error.column in self._columns else "(computed by the template)"
            there = ", ".join(sorted(map(str, row)))
            return PromptError(
                f"{label}: {at} names column {column!r}, which the row does not have; it has: {there}"
            )
        return UnrenderableRow(f"{label}: {at} failed with {type(error).__name__}", fault="prompt_failed")


class Row:
    """A row inside a template: its attributes and its items are its columns and nothing else."""

    __slots__ = ("__columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.__columns = columns

    def __getitem__(self, name: Any) -> Any:
        return self.__columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.__columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.__columns)

    def __len__(self) -> int:
        return len(self.__columns)

    def __str__(self) -> str:
        return f"row({', '.join(map(str, self.__columns))})"


class _MissingColumnError(UndefinedError):
    def __init__(self, column: Any) -> None:
        super().__init__("missing column")
        self.column = column


class _MissingColumn(StrictUndefined):
    """Fails on use, except in ``is defined`` and ``default(…)``, and remembers which column it was."""

    __slots__ = ()

    def _fail_with_undefined_error(self, *args: Any, **kwargs: Any) -> Any:
        raise _MissingColumnError(self._undefined_name)

    __iter__ = __str__ = __len__ = __eq__ = __ne__ = __bool__ = __hash__ = __contains__ = (
        _fail_with_undefined_error
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _fail_with_undefined_error
    )
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pos__ = __neg__ = _fail_with_undefined_error
    __call__ = __getitem__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = _fail_with_undefined_error
    __float__ = __complex__ = __pow__ = __rpow__ = _fail_with_undefined_error


class _PromptEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with rows whose names are columns."""

    def __init__(self) -> None:
        super().__init__(
            undefined=StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            finalize=_shown,
            cache_size=0,
        )

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is Row:
            return self.getitem(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is Row:
            try:
                return obj[argument]
            except (KeyError, TypeError):
                return _MissingColumn(obj=obj, name=argument)
        return super().getitem(obj, argument)


def _shown(value: Any) -> Any:
    """Show None as nothing, and refuse methods: they would show a memory address, new in every process."""
    if value is None:
        return ""
    if callable(value) and not isinstance(value, StrictUndefined):
        raise SecurityError("a method is not text")
    return value


def _checked_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if (
        not isinstance(message, Mapping)
        or not isinstance(message.get("role"), str)
        or "content" not in message
    ):
        raise PromptError(f'message {index} of the prompt is not of the form {{"role": …, "content": …}}')
    try:
        return dict(plain_argument(message, f"message {index} of the prompt"))
    except ConfigurationError as e:
        raise PromptError(e.args[0]) from None


def _column_names(tree: nodes.Template) -> Iterator[str]:
    for attribute in tree.find_all(nodes.Getattr):
        if isinstance(attribute.node, nodes.Name) and attribute.node.name == "row":
            yield attribute.attr
    for item in tree.find_all(nodes.Getitem):
        if (
            isinstance(item.node, nodes.Name)
            and item.node.name == "row"
            and isinstance(item.arg, nodes.Const)
        ):
            yield str(item.arg.value)


def _template_line(traceback: TracebackType | None) -> int | None:
    """Return the line of the template in which an error arose, from the compiled template's frames."""
    found = None
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            found = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _read_template(path: str, context: Context) -> str:
    from airflow_batch_llm.sources.locations import open_location

    if "://" not in path and not os.path.isabs(path):
        dag_file = getattr(context.get("dag"), "fileloc", None)
        if dag_file:
            path = os.path.join(os.path.dirname(dag_file), path)
    try:
        with open_location(path) as file:
            return bytes(file.read()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PromptError(f"prompt file {path} is not UTF-8") from None
    except (FileNotFoundError, IsADirectoryError):
        raise PromptError(f"there is no prompt file {path}") from None
