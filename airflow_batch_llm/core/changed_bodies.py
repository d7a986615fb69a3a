"""Requests whose own bodies name what a retry changes: model and output limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_batch_llm.core.endpoints import RESPONSES
from airflow_batch_llm.core.model import Request, RequestTemplate

#: What bodies of the endpoints call the output limit.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
#: Gemini's own bodies hold it a level below, beside the other settings, in either spelling.
_SETTINGS = {"generationConfig": "maxOutputTokens", "generation_config": "max_output_tokens"}


def with_own_members_changed(
    request: Request,
    template: RequestTemplate,
    model: str,
    overrides: Mapping[str, Any],
    *,
    raised: Callable[[int], int] | None = None,
) -> Request:
    """Change model and limit where the body itself names them, which goes before what the batch says.

    A ready-made body names everything: there, what it lacks is put in.

    :param raised: of an answer that was cut off: makes a larger limit of the body's own. A body never gets a
        smaller one than it has.
    """
    body: dict[str, Any] = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    changed: dict[str, Any] = {}
    if template.native or "model" in body:
        changed["model"] = model
    if "max_tokens" in overrides:
        changed |= _with_limit(body, template, _Limit(overrides["max_tokens"], raised))
    if not changed:
        return request
    encoded = msgspec.json.encode(body | changed, order="sorted")
    return msgspec.structs.replace(request, body=msgspec.Raw(encoded))


@dataclass(frozen=True)
class _Limit:
    """The limit that the batch has now, where the body's own is not larger."""

    batch: int
    raised: Callable[[int], int] | None

    def after(self, own: msgspec.Raw | None) -> int:
        """Return the limit that follows on a body's own."""
        try:
            before = msgspec.json.decode(own, type=int | None) if own is not None else None
        except msgspec.MsgspecError:
            before = None
        if before is None or before < self.batch:
            return self.batch
        return self.raised(before) if self.raised is not None else before


def _with_limit(body: Mapping[str, msgspec.Raw], template: RequestTemplate, limit: _Limit) -> dict[str, Any]:
    """Return the members of a body that hold the output limit, with another one."""
    if template.native and "contents" in body:
        place = next((name for name in _SETTINGS if name in body), "generationConfig")
        settings = msgspec.json.decode(body.get(place, b"{}"), type=dict[str, msgspec.Raw] | None) or {}
        named = next((name for name in _SETTINGS.values() if name in settings), _SETTINGS[place])
        return {place: settings | {named: limit.after(settings.get(named))}}
    named_here = [name for name in _LIMITS if name in body]
    if template.native and not named_here:
        named_here = ["max_output_tokens" if template.endpoint == RESPONSES else "max_tokens"]
    return {name: limit.after(body.get(name)) for name in named_here}
