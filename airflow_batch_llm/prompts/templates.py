"""The templates of one prompt: Jinja in a sandbox, compiled once and rendered for every row.

A column is ``{{ row.body }}`` or ``{{ row["body"] }}``, also where its name is that of a method
(``items``). A value that is None renders as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airflow_batch_llm.exceptions import BatchLLMError, FileUnavailable, PromptError
from airflow_batch_llm.prompts.faults import RowFault, UnrenderableRow

_FILE_STATEMENTS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
#: Filters and calls by which a template may say something else each time.
_VARYING = (nodes.Call, nodes.CallBlock, nodes.FilterBlock)


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


Render = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Rendering:
    """A compiled value: ``render(row)``; where nothing in it hangs on the row, ``value`` is what it is."""

    render: Render
    constant: bool = False
    value: Any = None

    @classmethod
    def of(cls, value: Any) -> Rendering:
        """Return the rendering that is the same for every row."""
        return cls(lambda row: value, True, value)


class Templates:
    """Compiles the templates of one prompt and tells what went wrong in them.

    :param variables: names that templates know beside ``row``.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._environment = _PromptEnvironment()
        self._environment.globals.update(variables)
        self._known = {"row", *variables}
        self._columns: set[str] = set()
        self._use_whole_rows = False
        self._places: list[tuple[Template, str]] = []

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the templates name literally."""
        return frozenset(self._columns)

    @property
    def reads(self) -> frozenset[str] | None:
        """All columns that the prompt can look at; None where a template uses the row as a whole."""
        return None if self._use_whole_rows else self.columns

    def note_column(self, column: str) -> None:
        """Note a column that the prompt reads without a template."""
        self._columns.add(column)

    def compile(self, value: Any, where: str) -> Rendering:
        """Compile a text, or a structure of lists and mappings in which every string is a template.

        :param where: how errors name the value: "the prompt", "the system message".
        :raises PromptError: a template does not compile or names what there is not.
        """
        if isinstance(value, str):
            return self._compile_text(value, where)
        if isinstance(value, Mapping):
            members = {k: self.compile(v, f"{where}[{k!r}]") for k, v in value.items()}
            if all(member.constant for member in members.values()):
                return Rendering.of({k: member.value for k, member in members.items()})
            renders = {k: member.render for k, member in members.items()}
            return Rendering(lambda row: {k: render(row) for k, render in renders.items()})
        if isinstance(value, (list, tuple)):
            items = [self.compile(v, f"{where}[{i}]") for i, v in enumerate(value)]
            if all(item.constant for item in items):
                return Rendering.of([item.value for item in items])
            return Rendering(lambda row: [item.render(row) for item in items])
        return Rendering.of(value)

    def _compile_text(self, text: str, where: str) -> Rendering:
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
        undeclared = meta.find_undeclared_variables(tree)
        unknown = sorted(undeclared - self._known - set(self._environment.globals))
        if unknown:
            raise PromptError(
                f"{where} uses unknown names {unknown}; a column is written row.<column>, "
                f"other names must be in vars (there: {sorted(self._known)})"
            )
        named = list(_column_names(tree))
        self._columns.update(named)
        if sum(name.name == "row" for name in tree.find_all(nodes.Name)) != len(named):
            self._use_whole_rows = True
        self._places.append((template, where))
        render = self._renderer(template)
        if "row" in undeclared or not _says_the_same(tree):
            return Rendering(render)
        try:
            return Rendering.of(render(Row({})))
        except UnicodeEncodeError:
            raise PromptError(f"{where} would hold half a surrogate pair, which cannot be sent") from None
        except Exception as e:
            raise PromptError(self.explained(e, {}, "no row").args[0]) from None

    def _renderer(self, template: Template) -> Callable[[Row], str]:
        root, new_context, concat = template.root_render_func, template.new_context, self._environment.concat
        names = dict(self._environment.globals)

        def render(row: Row) -> str:
            # Shared: the names are complete; Jinja would otherwise merge its globals in for every row.
            rendered: str = concat(root(new_context({**names, "row": row}, shared=True)))
            if not rendered.isascii():
                rendered.encode("utf-8")
            return rendered

        return render

    def explained(self, error: Exception, row: Mapping[str, Any], label: str) -> BatchLLMError:
        """Say what went wrong without quoting values: names are told only where the author wrote them.

        :returns: an :class:`UnrenderableRow` where the row's values are at fault.
        """
        if isinstance(error, (PromptError, FileUnavailable)):
            return type(error)(f"{label}: {error.args[0]}")
        if isinstance(error, RowFault):
            return UnrenderableRow(f"{label}: {error.says}", fault=error.fault)
        if isinstance(error, UnicodeEncodeError):
            return UnrenderableRow(
                f"{label}: the prompt would hold half a surrogate pair", fault="unencodable_text"
            )
        at = self._place_of(error.__traceback__)
        if isinstance(error, SecurityError):
            return PromptError(f"{label}: {at} does what prompts are not allowed to do")
        if isinstance(error, MissingColumnError):
            column = error.column if error.column in self._columns else "(computed by the template)"
            there = ", ".join(sorted(map(str, row)))
            return PromptError(
                f"{label}: {at} names column {column!r}, which the row does not have; it has: {there}"
            )
        return UnrenderableRow(f"{label}: {at} failed with {type(error).__name__}", fault="prompt_failed")

    def _place_of(self, traceback: TracebackType | None) -> str:
        """Name template and line in which an error arose, from the compiled templates' frames."""
        line, where = None, "the prompt"
        while traceback is not None:
            template = traceback.tb_frame.f_globals.get("__jinja_template__")
            for known, place in self._places:
                if known is template:
                    line, where = known.get_corresponding_lineno(traceback.tb_lineno), place
            traceback = traceback.tb_next
        return f"line {line} of {where}" if line else where


class MissingColumnError(UndefinedError):
    """A column was used that the row does not have."""

    def __init__(self, column: Any) -> None:
        super().__init__("missing column")
        self.column = column


class _MissingColumn(StrictUndefined):
    """Fails on use, except in ``is defined`` and ``default(…)``, and remembers which column it was."""

    __slots__ = ()

    def _fail_with_undefined_error(self, *args: Any, **kwargs: Any) -> Any:
        raise MissingColumnError(self._undefined_name)

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


def _says_the_same(tree: nodes.Template) -> bool:
    """Say whether a template that does not name the row is sure to say the same each time."""
    if next(tree.find_all(_VARYING), None) is not None:
        return False
    return all(found.name != "random" for found in tree.find_all(nodes.Filter))


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
