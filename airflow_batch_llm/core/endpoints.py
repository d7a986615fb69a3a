"""The endpoints that batches are made of: short names for people, paths for the wire."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
MODERATIONS = "/v1/moderations"

#: Short name -> path.
ENDPOINTS = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "embeddings": EMBEDDINGS,
    "moderations": MODERATIONS,
}


def endpoint_path(name: str) -> str:
    """Return the path that a short name, or a path, stands for.

    :raises ValueError: it is neither; the message lists the names.
    """
    path = ENDPOINTS.get(name, name)
    if path not in ENDPOINTS.values():
        raise ValueError(f"endpoint {name!r} is not known; there are {', '.join(ENDPOINTS)}")
    return path


def short_names(paths: Iterable[str]) -> list[str]:
    """Return the short names of paths, in the order of the documentation."""
    known = frozenset(paths)
    return [name for name, path in ENDPOINTS.items() if path in known]


def not_offered(who: str, endpoint: str, offered: Iterable[str]) -> str:
    """Return what a person is told whose provider makes no batches of an endpoint."""
    asked = "".join(short_names([endpoint])) or endpoint
    return f"{who} has no batches of endpoint {asked!r}; it has {', '.join(short_names(offered))}"


class _Asked(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


_asked = msgspec.json.Decoder(_Asked)
_listed = msgspec.json.Decoder(list[msgspec.Raw])


def count_inputs(body: bytes) -> int:
    """Return for how many vectors the body of an embeddings request asks: one, or as many as it lists.

    A list of numbers is one text, given as tokens. What cannot be read counts as one.
    """
    try:
        given = bytes(_asked.decode(body).input).lstrip()
        listed = _listed.decode(given) if given.startswith(b"[") else []
    except msgspec.MsgspecError:
        return 1
    is_tokens = bool(listed) and bytes(listed[0])[:1] not in (b'"', b"[")
    return 1 if is_tokens else max(len(listed), 1)
