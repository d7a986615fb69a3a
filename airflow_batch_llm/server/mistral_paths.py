"""Which of Mistral's paths are answered without a key: signed addresses, and files whose id is no UUID."""

from __future__ import annotations

import uuid

_SIGNED = "/mistral/signed/"
_FILES = "/mistral/v1/files/"


def needs_no_key(path: str) -> bool:
    """Say whether a call is answered before its key is looked at: a signature or the 422 of a bad id."""
    if path.startswith(_SIGNED):
        return True
    return path.startswith(_FILES) and as_uuid(path.removeprefix(_FILES).partition("/")[0]) is None


def as_uuid(text: str) -> str | None:
    """Return a UUID as it is written here, or None for what is none."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None
