"""Where the servers that speak the OpenAI batch protocol differ, as data.

A new provider of this family is a row here; code asks the row, never the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_batch_llm.backends.provider import Form, one_of
from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS
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
    :param completion_window: value of ``completion_window`` on create, unless the connection names one.
    :param windows: the values that it may have; empty where the server decides.
    :param takes: options of a connection that the server has a use for, beside the window and the expiry of
        files, which follow from what is said of them here.
    :param max_tokens_field: name of the output limit in a chat body.
    :param keeps_partial: whether answers of a batch that expired or was cancelled can be read.
    :param metadata: whether create keeps ``metadata`` (without it a lost batch cannot be found).
    :param input_expiry: (least, most) seconds for ``expires_after`` of an upload, None where not known.
    :param output_expiry: the same for ``output_expires_after`` on create.
    :param cancel_refusals: statuses with which a cancel of an ended batch may be refused.
    :param statuses: raw statuses beyond the family's own, lower case -> a status of the family.
    :param cancel_seconds: how long past its window a batch may be ``cancelling``; then it counts as
        cancelled. None for ever: the provider ends every cancel.
    :param offset_paging: whether the cursor of the list is a number of batches, not the last id.
    :param checks_uploads: whether a file with a bad line is refused when it is uploaded.
    :param example_url: what the address of a server of one's own looks like.
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
    windows: tuple[str, ...] = ("24h",)
    takes: Mapping[str, Form | None] = field(default_factory=dict)
    max_tokens_field: str = "max_tokens"
    keeps_partial: bool = True
    metadata: bool = True
    input_expiry: tuple[int, int] | None = None
    output_expiry: tuple[int, int] | None = None
    cancel_refusals: frozenset[int] = frozenset({400, 404, 405, 409, 412, 422})
    statuses: Mapping[str, str] = field(default_factory=dict)
    cancel_seconds: float | None = None
    offset_paging: bool = False
    checks_uploads: bool = False
    example_url: str = "http://host:8000/v1"
    title: str = ""
    wire_tested: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def path_of(self, endpoint: str) -> str:
        """Return what the server calls an endpoint."""
        return self.paths.get(endpoint, endpoint)

    def options(self) -> dict[str, Form | None]:
        """Return the options that a connection may set, with the form of their values."""
        found: dict[str, Form | None] = {**self.takes}
        found["completion_window"] = one_of(*self.windows) if self.windows else None
        if self.input_expiry:
            found["input_expiry_seconds"] = None
        if self.output_expiry:
            found["output_expiry_seconds"] = None
        return found


def window_seconds(window: str) -> float | None:
    """Return the seconds of a window such as ``24h`` or ``7d``, None where it is no such thing."""
    number, unit = window[:-1], window[-1:]
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS:
        return None
    return int(number) * _UNITS[unit]


_UNITS = {"m": 60.0, "h": 3_600.0, "d": _DAY}


def _limits(requests: int, megabytes: int, line_megabytes: int, *, per_hour: int | None = None) -> Limits:
    return Limits(
        max_requests=requests,
        max_bytes=megabytes * 1_000_000,  # providers say "MB"; the smaller reading is safe with both
        max_line_bytes=line_megabytes * 1_000_000,
        window_seconds=_DAY,
        max_inputs=50_000,
        creates_per_hour=per_hour,
    )


#: The smallest limits met in the family: for servers that name none.
_SMALLEST = _limits(50_000, 100, 10)
#: Headers of OpenAI, which a gateway may hand on.
_TEAMS: Mapping[str, Form | None] = {"organization": None, "project": None}
_HALF_PRICE = "Batches cost half of the synchronous price."

DIALECTS: dict[str, Dialect] = {
    row.name: row
    for row in (
        Dialect(
            name="openai",
            title="OpenAI",
            wire_tested=("AIBrix", "LLMock", "OGX"),
            takes=_TEAMS,
            base_url="https://api.openai.com/v1",
            limits=_limits(50_000, 200, 200, per_hour=2_000),  # no limit on a line is documented
            max_tokens_field="max_completion_tokens",
            input_expiry=(3_600, 2_592_000),
            output_expiry=(3_600, 2_592_000),
            notes=(_HALF_PRICE, "A full queue of tokens shows as a failed batch; it is sent again later."),
        ),
        Dialect(
            name="groq",
            title="Groq",
            wire_tested=("LLMock",),
            base_url="https://api.groq.com/openai/v1",
            # The guide says 200 MB, the SDK 100 MB.
            limits=_limits(50_000, 100, 10),
            endpoints=frozenset({CHAT}),
            max_tokens_field="max_completion_tokens",
            windows=(),  # 24h to 7d; what is allowed in between is not documented
            notes=(_HALF_PRICE, "The window can be from 24h to 7d; not every plan has batches."),
        ),
        Dialect(
            name="nebius",
            title="Nebius Token Factory",
            base_url="https://api.tokenfactory.nebius.com/v1",
            limits=replace(_limits(5_000_000, 10_000, 10), max_inputs=None),
            endpoints=frozenset({CHAT, EMBEDDINGS}),
            notes=(_HALF_PRICE, "500 batches at a time."),
        ),
        Dialect(
            name="deepinfra",
            title="DeepInfra",
            base_url="https://api.deepinfra.com/v1",
            limits=_limits(50_000, 200, 10),
            endpoints=frozenset({CHAT, COMPLETIONS, EMBEDDINGS}),
            notes=(
                "Batches cost a fifth less than synchronous calls.",
                "One bad line fails its batch; it is cut out and the others are sent again for nothing.",
                "A batch that is cancelled may still complete, and is paid for then.",
            ),
        ),
        Dialect(
            name="parasail",
            title="Parasail",
            base_url="https://api.parasail.io/v1",
            limits=_limits(50_000, 1_000, 10),
            endpoints=frozenset({CHAT, EMBEDDINGS}),
            notes=(_HALF_PRICE,),
        ),
        Dialect(
            name="doubleword",
            title="Doubleword",
            base_url="https://api.doubleword.ai/v1",
            limits=_limits(50_000, 100, 10),
            windows=(),  # a configured set: 24h, 1h, background
            checks_uploads=True,
            notes=("Prices go by the window (24h, 1h).", "Also runs as a gateway of one's own."),
        ),
        Dialect(
            name="morph",
            title="Morph",
            base_url="https://api.morphllm.com/v1",
            limits=_limits(50_000, 100, 10),
            endpoints=frozenset({CHAT}),
            offset_paging=True,
            notes=(_HALF_PRICE, "Rows that failed stand in the output file; they are told apart by status."),
        ),
        Dialect(
            name="alibaba",
            title="Alibaba Model Studio",
            base_url=None,
            limits=_limits(50_000, 200, 6),
            endpoints=frozenset({CHAT, EMBEDDINGS}),
            windows=(),
            example_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            notes=(_HALF_PRICE, "The address depends on the region of the key.", "Longer windows are taken."),
        ),
        Dialect(
            name="litellm",
            title="LiteLLM proxy",
            takes=_TEAMS,
            base_url=None,
            limits=_SMALLEST,
            key_required=False,
            windows=(),
            example_url="http://litellm:4000/v1",
            notes=(
                "What a batch may hold depends on the provider behind it: set max_requests and max_bytes.",
                "Results of Bedrock come through in Bedrock's own form, and count as unknown.",
            ),
        ),
        Dialect(
            name="aibrix",
            title="AIBrix",
            wire_tested=("AIBrix",),
            base_url=None,
            limits=_SMALLEST,
            endpoints=frozenset({CHAT, COMPLETIONS, EMBEDDINGS}),
            key_required=False,
            windows=(),
            statuses={"scheduling": "queued"},  # before a batch has found a place to run
            example_url="http://aibrix-metadata-service:8090/v1",
        ),
        Dialect(
            name="llm-d",
            title="llm-d batch gateway",
            base_url=None,
            limits=_SMALLEST,
            key_required=False,
            windows=(),
            example_url="http://batch-gateway:8000/v1",
            notes=("What it finished is kept in every state, failed included.",),
        ),
        Dialect(
            name="ogx",
            title="OGX",
            wire_tested=("OGX",),
            base_url=None,
            limits=_SMALLEST,
            key_required=False,
            cancel_seconds=3_600.0,  # for batches of a process that was killed
            keeps_partial=False,
            example_url="http://ogx:8321/v1",
        ),
        # Any server with OpenAI's files and batches: the smallest limits met in the family, and no
        # fields that a strict server may refuse.
        Dialect(
            name="generic",
            title="any server with OpenAI's files and batches",
            wire_tested=("AIBrix", "LLMock", "OGX"),
            takes=_TEAMS,
            base_url=None,
            limits=_SMALLEST,
            key_required=False,
            windows=(),
            statuses={"scheduling": "queued"},  # AIBrix
            cancel_seconds=3_600.0,  # OGX
        ),
    )
}
