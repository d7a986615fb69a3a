"""The endpoints that batches are made of: short names for people, paths for the wire."""

from __future__ import annotations

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
