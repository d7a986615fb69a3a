"""Names in a connection's extra: unknown ones are refused, or told where the extra is for other packages.

A field that is not read is a person's word that nobody hears: ``dialekt`` would send to OpenAI.
"""

from __future__ import annotations

import difflib
import functools
import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.hooks.account_fields import Shared, is_empty, refusal

if TYPE_CHECKING:
    from airflow.sdk import Connection

log = logging.getLogger(__name__)

#: What Airflow's older forms wrote before the name of a field.
_OLD_FORM = "extra__batch_llm__"
_KEY = "the key belongs into the password field"
_ADDRESS = "the address belongs into the host field"
#: Names that people try, and what to do instead.
_ELSEWHERE = {
    **dict.fromkeys(("api_key", "key", "password", "token"), _KEY),
    **dict.fromkeys(("base_url", "endpoint", "host", "url"), _ADDRESS),
    "provider": "is 'dialect' meant?",
}
#: A name that may be shown. What is longer or looks otherwise may be a key in the wrong place.
_SHOWN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
#: How alike two names must be (0 to 1) for a question in a refusal, and for a warning.
_MAYBE, _SURELY = 0.6, 0.85


def object_of(connection: Connection, extra: Any) -> Mapping[str, Any]:
    """Return a connection's extra as Airflow read it.

    :raises ConfigurationError: it is no JSON object. Airflow logs that one cannot be read, and goes on
        without it.
    """
    if isinstance(extra, Mapping) and (extra or _is_object(connection.extra)):
        return extra
    if extra is None:  # the JSON value null
        return {}
    raise refusal(connection, 'has an extra that is not a JSON object, such as {"dialect": "groq"}')


def _is_object(text: Any) -> bool:
    if not isinstance(text, str) or not text.strip():
        return True
    try:
        return isinstance(json.loads(text), dict | None)
    except ValueError:
        return False


def only_known(known: Collection[str], connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an extra that is for this package alone, under their names of today.

    :raises ConfigurationError: a field that is not known and not empty. The message names it, the known one
        that it is most like, and all known ones.
    """
    fields = _renamed(connection, extra)
    strange = [name for name, value in fields.items() if name not in known and not is_empty(value)]
    if strange:
        told = ", ".join(_told(name, known) for name in strange)
        what = f"has in its extra what nothing reads: {told}. Known fields: {', '.join(known)}"
        raise refusal(connection, what)
    return {name: value for name, value in fields.items() if name in known}


def tell_misspelt(connection: Connection, extra: Mapping[str, Any]) -> None:
    """Log, once a process, fields of another package's connection that are nearly named like one of ours."""
    ours = Shared.model_fields
    for name, value in extra.items():
        known = name in ours or is_empty(value)
        near = None if known else _swapped(name, ours) or _nearest(name, ours, _SURELY)
        if near is not None and near not in extra:
            tell_once(connection.conn_id, name, f"is {near!r} meant?")


@functools.lru_cache(maxsize=1024)  # remembers what was told
def tell_once(conn_id: str, name: str, hint: str) -> None:
    """Log, once a process, that a field of another package's connection is not read."""
    log.warning("Connection %r: nothing reads the field %r of its extra; %s", conn_id, name, hint)


def _renamed(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without what older forms put before their names."""
    fields = {name: value for name, value in extra.items() if not name.startswith(_OLD_FORM)}
    for name, value in extra.items():
        short = name.removeprefix(_OLD_FORM)
        if short == name or is_empty(value) or fields.get(short) == value:
            continue
        if not is_empty(fields.get(short)):
            raise refusal(connection, f"has two values for {short!r}: one is named {name!r}")
        fields[short] = value
    return fields


def _told(name: str, known: Iterable[str]) -> str:
    if not _SHOWN.fullmatch(name):
        return "a field whose name is not shown"
    near = _nearest(name, known, _MAYBE)
    hint = _ELSEWHERE.get(_plain(name)) or (f"is {near!r} meant?" if near else "")
    return f"{name!r} ({hint})" if hint else repr(name)


def _nearest(name: str, known: Iterable[str], least: float) -> str | None:
    """Return the known name that another is most like, None where none is."""
    found = difflib.get_close_matches(_plain(name), list(known), n=1, cutoff=least)
    return found[0] if found else None


def _swapped(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that has the letters of another in another order (``modle``)."""
    letters = sorted(_plain(name))
    return next((one for one in known if sorted(one) == letters), None)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
