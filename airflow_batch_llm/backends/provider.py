"""One line of the capability table: a provider as connections, commands and docs know it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_batch_llm.backends.options import IN_CODE, PARTICULAR, BackendOptions, particular
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.ports import Backend, Limits
from airflow_batch_llm.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of an option look like. It tells what cannot be meant, not what exists today.

    :param pattern: matches a whole value.
    :param says: the same in words: what follows "must be".
    """

    pattern: str
    says: str

    def fits(self, value: str) -> bool:
        """Say whether a value looks as it must."""
        return re.fullmatch(self.pattern, value, re.ASCII) is not None


def one_of(*values: str) -> Form:
    """Return the form of an option that has these values only."""
    return Form("|".join(map(re.escape, values)), " or ".join(values))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, or a kind of server of one's own.

    :param name: what a connection's ``dialect`` field says.
    :param title: for people.
    :param protocol: which wire protocol it speaks: ``openai``, ``azure``, ``anthropic``, ``gemini`` or
        ``mistral``.
    :param base_url: where it is, None where the user must say so.
    :param example_url: what such an address looks like.
    :param key_required: whether calls without a key are pointless.
    :param limits: what one batch may hold, unless the connection says otherwise.
    :param endpoints: paths that a batch can be made of.
    :param marks_batches: whether a batch carries the token that it is found again by.
    :param mark: where a batch carries it.
    :param keeps_partial: whether answers of a batch that expired or was cancelled can be read.
    :param wire_tested: servers against which the tests complete a full cycle, beside the local one.
    :param live_tested: when it last completed a full cycle against the real service (``2026-11``); "" never.
    :param notes: what a user should know, one sentence each.
    :param options: the options that it takes beyond those that all take, with the form of their values
        where that is narrower than an option's own.
    :param build: makes the backend. :raises ConfigurationError: a value that the provider cannot take.
    :param decode: reads one result line, as the backend does.
    """

    name: str
    title: str
    protocol: str
    base_url: str | None
    limits: Limits
    endpoints: frozenset[str]
    build: Callable[[Provider, str, str, BackendOptions], Backend]
    decode: Callable[[bytes], Row]
    example_url: str = ""
    key_required: bool = True
    marks_batches: bool = True
    mark: str = "metadata"
    keeps_partial: bool = True
    wire_tested: tuple[str, ...] = ()
    live_tested: str = ""
    notes: tuple[str, ...] = ()
    options: Mapping[str, Form | None] = field(default_factory=dict)

    @property
    def found_by(self) -> str:
        """Return how a batch is found again whose create call had no reply."""
        return self.mark if self.marks_batches else "time, count and ids of its rows"

    @property
    def tested(self) -> str:
        """Say what the tests have run against: servers, and the real service or not."""
        servers = ("the local server", *self.wire_tested)
        named = " and ".join(filter(None, (", ".join(servers[:-1]), servers[-1])))
        live = f"live {self.live_tested}" if self.live_tested else "not yet against the live service"
        return f"wire-tested against {named}; {live}"

    @property
    def fields(self) -> dict[str, Form | None]:
        """Return those of its own options that a connection has fields for, in the order of the form."""
        return {
            name: self.options[name] for name in PARTICULAR if name in self.options and name not in IN_CODE
        }

    def check(self, options: BackendOptions) -> None:
        """Refuse what would do nothing here.

        :raises ConfigurationError: an option that the provider lacks, or a value that cannot be one of its
            own. The message repeats no value.
        """
        for name, value in particular(options).items():
            if name not in self.options:
                has = ", ".join(self.fields) or "none"
                raise ConfigurationError(
                    f"provider {self.name!r} has no option {name!r}; beside the common ones it has: {has}"
                )
            form = self.options[name]
            if form is not None and not form.fits(value):
                raise ConfigurationError(f"option {name!r} of provider {self.name!r} must be {form.says}")

    def limited(self, options: BackendOptions) -> Provider:
        """Return the provider with the limits (requests, bytes) that a connection sets."""
        limits = self.limits
        total = options.max_bytes or limits.max_bytes
        return replace(
            self,
            limits=replace(
                limits,
                max_requests=options.max_requests or limits.max_requests,
                max_bytes=total,
                max_line_bytes=min(options.max_line_bytes or limits.max_line_bytes, total),
            ),
        )
