"""Where the servers that speak the OpenAI batch protocol differ, as data.

A new provider of this family is a row here; code asks the row, never the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_batch_llm.core.endpoints import ENDPOINTS
from airflow_batch_llm.core.ports import Limits

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row of the capability table.

    :param base_url: where the provider is, None where the user must say so.
    :param limits: what one batch may hold.
    :param endpoints: paths that a batch can be made of; a server of one's own says itself which it serves.
    :param paths: endpoints that the server calls otherwise in lines and batches -> its own name of them.
    :param key_required: whether calls without a key are pointless.
    :param auth_header: header that carries the key, after ``auth_prefix``.
    :param completion_window: value of ``completion_window`` on create.
    :param max_tokens_field: name of the output limit in a chat body.
    :param metadata: whether create keeps ``metadata`` (without it a lost batch cannot be found).
    :param input_expiry: (least, most) seconds for ``expires_after`` of an upload, None where not known.
    :param output_expiry: the same for ``output_expires_after`` on create.
    :param cancel_refusals: statuses with which a cancel of an ended batch may be refused.
    :param statuses: raw statuses beyond the family's own, lower case -> a status of the family.
    :param cancel_seconds: how long past its window a batch may be ``cancelling``; then it counts as
        cancelled. None for ever: the provider ends every cancel.
    :param title: for people.
    :param wire_tested: servers against which the tests complete a full cycle, beside the local one.
    :param notes: what a user should know, one sentence each.
    """

    name: str
    base_url: str | None
    limits: Limits
    endpoints: frozenset[str] = frozenset(ENDPOINTS.values())
    paths: Mapping[str, str] = field(default_factory=dict)
    key_required: bool = True
    auth_header: str = "Authorization"
    auth_prefix: str = "Bearer "
    completion_window: str = "24h"
    max_tokens_field: str = "max_tokens"
    metadata: bool = True
    input_expiry: tuple[int, int] | None = None
    output_expiry: tuple[int, int] | None = None
    cancel_refusals: frozenset[int] = frozenset({400, 404, 405, 409, 412, 422})
    statuses: Mapping[str, str] = field(default_factory=dict)
    cancel_seconds: float | None = None
    title: str = ""
    wire_tested: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def path_of(self, endpoint: str) -> str:
        """Return what the server calls an endpoint."""
        return self.paths.get(endpoint, endpoint)


def _limits(requests: int, megabytes: int, line_megabytes: int) -> Limits:
    return Limits(
        max_requests=requests,
        max_bytes=megabytes * 1_000_000,  # providers say "MB"; the smaller reading is safe with both
        max_line_bytes=line_megabytes * 1_000_000,
        window_seconds=_DAY,
        max_inputs=50_000,
    )


DIALECTS: dict[str, Dialect] = {
    row.name: row
    for row in (
        Dialect(
            name="openai",
            title="OpenAI",
            base_url="https://api.openai.com/v1",
            limits=_limits(50_000, 200, 200),  # no limit on a line is documented
            max_tokens_field="max_completion_tokens",
            input_expiry=(3_600, 2_592_000),
            output_expiry=(3_600, 2_592_000),
        ),
        # Any server with OpenAI's files and batches: the smallest limits met in the family, and no
        # fields that a strict server may refuse.
        Dialect(
            name="generic",
            title="any server with OpenAI's files and batches",
            base_url=None,
            limits=_limits(50_000, 100, 10),
            key_required=False,
            statuses={"scheduling": "queued"},  # AIBrix, before a batch has found a place to run
            cancel_seconds=3_600.0,  # OGX, for batches of a process that was killed
        ),
    )
}
