"""Scenarios: how the server is told to misbehave, as one JSON document.

A scenario is given with ``--scenario FILE`` or ``PUT /admin/scenario``; ``{}`` is a server without
faults. Putting one starts all its counters again. Counters are kept in SQLite, so a restart goes on
where the server was. A batch keeps the scenario it was created under. ::

    {
      "rows":    [{"match": {"contains": "refund"}, "fault": "server_error", "times": 1}],
      "batches": [{"fault": "expire", "after": 0.5, "times": 1}],
      "calls":   [{"on": "create", "fault": "lost_reply", "times": 1}],
      "pace":    {"seconds": 0, "hold_at": 0.5, "cancel_seconds": 0, "statuses": []},
      "results": {"shuffle": 7, "crlf": true},
      "absent_file_id": "null"
    }

``times`` always means: this often, then never again; null (or left out) means always. For a row rule
it is counted for each ``custom_id``; for batch and call rules over all of them. Within a list, the
first rule that fits and is not used up decides.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from airflow_batch_llm.exceptions import ConfigurationError

Count = Annotated[int, Field(ge=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]

RowFault = Literal[
    "server_error",
    "rate_limited",
    "insufficient_quota",
    "bad_request",
    "context_length_exceeded",
    "request_timeout",
    "missing",
    "error_in_200",
    "truncated",
    "content_filter",
    "refusal",
    "empty",
    "invalid_json",
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Strict):
    """Which rows a rule is for. All conditions given must hold; none given means every row."""

    contains: str | None = Field(None, min_length=1, description="text that stands in the prompt")
    custom_id: str | None = Field(None, description="regular expression found in the custom_id as sent")
    model: str | None = Field(None, description="the model asked for, exactly")
    fraction: Part | None = Field(None, description="this part of the rows, chosen by a hash")
    by: Literal["custom_id", "prompt"] = Field("custom_id", description="what the hash of `fraction` is over")
    salt: str = Field("", description="another salt chooses other rows")
    every: Count | None = Field(None, description="every n-th line of the input file")

    @field_validator("custom_id")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as e:
                raise ValueError(f"not a regular expression: {e}") from e
        return value


class RowRule(_Strict):
    """What happens to single rows.

    ====================================  ====================================================================
    server_error, rate_limited            row in the error file with 500, 429
    insufficient_quota                    429 with that code
    bad_request                           400; ``code`` and ``param`` as given
    context_length_exceeded               400 with that code
    request_timeout                       error row with ``response`` null
    missing                               in neither file, not charged
    error_in_200                          in the output file, 200, but the body is an error; not charged
    truncated, content_filter, refusal,   in the output file, 200, charged, but not an answer
    empty, invalid_json
    ====================================  ====================================================================

    A fault that the answers of an endpoint cannot have (a truncated embedding) does nothing.
    """

    fault: RowFault
    match: Match = Match()
    times: Count | None = None
    code: str | None = None
    param: str | None = None


class BatchRule(_Strict):
    """What happens to whole batches (drawn when the batch is created).

    * ``expire``: after the part ``after`` of the rows; the rest is ``batch_expired`` in the error file.
    * ``queue_full``: fails with ``token_limit_exceeded``; nothing runs. With ``at_create``, and always where
      a protocol knows it only so, the create call is refused, with ``status`` (null: the protocol's own).
    * ``fail_validation``: fails with ``code``, ``param`` and ``line`` (null: no line named); nothing runs.
      Over a protocol that checks uploads, one with a ``line`` refuses the upload.
    """

    fault: Literal["expire", "queue_full", "fail_validation"]
    times: Count | None = None
    after: Part = 0.5
    code: str = "invalid_request"
    param: str | None = None
    line: Count | None = None
    at_create: bool = False
    status: Annotated[int, Field(ge=400, le=599)] | None = None


class CallRule(_Strict):
    """What happens to API calls.

    ``on``: upload, create, retrieve (one batch), list (batches), cancel, download, file, delete, or poll
    (retrieve and list together).

    * ``error``: answers ``status`` (with ``code``; ``retry_after`` seconds as a header, in the form of
      ``retry_after_as``; ``html`` or plain ``text`` as the body) and does nothing. With status 404 it is a
      batch that "does not exist yet".
    * ``dropped``: closes the connection and does nothing.
    * ``lost_reply``: does it, then closes the connection without a reply.
    * ``timeout``: does nothing and never answers (the connection stays open for ``seconds`` at most).
    * ``cut`` (download): the body ends cleanly but holds only the part ``at`` of the bytes.
    * ``reset`` (download): the connection is reset after the part ``at`` of the bytes.

    The first ``skip`` calls are left alone.
    """

    on: Literal["upload", "create", "retrieve", "list", "poll", "cancel", "download", "file", "delete"]
    fault: Literal["error", "dropped", "lost_reply", "timeout", "cut", "reset"]
    times: Count | None = None
    skip: Annotated[int, Field(ge=0)] = 0
    status: Annotated[int, Field(ge=300, le=599)] = 500
    code: str | None = None
    retry_after: Seconds | None = None
    retry_after_as: Literal["seconds", "date", "milliseconds"] = "seconds"
    html: bool = False
    text: bool = False
    at: Annotated[float, Field(ge=0, lt=1)] = 0.5
    seconds: Seconds = 600

    @model_validator(mode="after")
    def _fits(self) -> CallRule:
        if self.fault in ("cut", "reset") and self.on != "download":
            raise ValueError(f"fault '{self.fault}' is for on='download' only")
        if self.html and self.text:
            raise ValueError("a body is either 'html' or 'text'")
        return self


class Pace(_Strict):
    """How long things take.

    :param seconds: how long a batch stays in progress: it runs the part ``hold_at`` of its rows, waits, and
        runs the rest. ``POST /admin/release`` ends the wait at once.
    :param cancel_seconds: how long a batch stays ``cancelling``.
    :param cancel_completes: whether a batch that is cancelled while it runs answers all its rows first.
    :param cancel_loses: so many rows that a cancelled batch had answered stand in neither file, and are no
        longer counted, as OpenAI was seen to do; none where all rows stand in one file. They stay charged:
        whether they are is not known.
    :param hidden: the first looks at a new batch that find none (404).
    :param statuses: shown by the first looks at a batch, one each, in place of its real status.
    :param live_counts: whether Anthropic's counts move while a batch runs, as they were seen to do.
    """

    seconds: Seconds = 0
    hold_at: Part = 0.5
    cancel_seconds: Seconds = 0
    cancel_completes: bool = False
    cancel_loses: Annotated[int, Field(ge=0)] = 0
    hidden: Annotated[int, Field(ge=0)] = 0
    statuses: tuple[str, ...] = ()
    live_counts: bool = False


class Results(_Strict):
    """What is odd about the result files. ``into`` both files, each for itself.

    :param shuffle: seed of another order; null keeps the order of the input.
    :param repeat: this many rows stand in the file twice.
    :param foreign: this many rows are of ids that nobody sent.
    :param no_id: this many rows have ``custom_id`` null.
    :param blank_lines: this many empty lines in between.
    :param crlf, bom, no_last_newline: bytes around the rows.
    :param broken_last_line: half a row at the end.
    :param late: the first looks at an ended batch that show no file ids yet.
    :param failures_in_output: rows that failed with a status stand in the output file as well as the answers
        (Morph, vLLM); those that were not executed stay in the error file.
    """

    shuffle: int | None = None
    repeat: Annotated[int, Field(ge=0)] = 0
    foreign: Annotated[int, Field(ge=0)] = 0
    no_id: Annotated[int, Field(ge=0)] = 0
    blank_lines: Annotated[int, Field(ge=0)] = 0
    crlf: bool = False
    bom: bool = False
    no_last_newline: bool = False
    broken_last_line: bool = False
    late: Annotated[int, Field(ge=0)] = 0
    failures_in_output: bool = False


class AnthropicQuirks(_Strict):
    """What nobody has confirmed about Anthropic.

    :param params_refused: where it is told that a request's ``params`` are refused: in its row, as was seen;
        or by the create call, with the request's place or without any.
    """

    params_refused: Literal["in_row", "at_create", "at_create_unnamed"] = "in_row"


class GeminiQuirks(_Strict):
    """What differs between reports about the Gemini API.

    :param job_states: states begin with ``JOB_STATE_`` in place of ``BATCH_STATE_``.
    :param row_errors: the member of a failed row that holds its error.
    :param cancelled_results: a cancelled batch shows the rows that it had answered.
    :param errors_in_list: the body of a refused call stands in a list of one element.
    :param retry_delay: seconds that a refusal for a full queue names (``RetryInfo``).
    """

    job_states: bool = False
    row_errors: Literal["error", "status"] = "error"
    cancelled_results: bool = False
    errors_in_list: bool = False
    retry_delay: Seconds = 1


class Scenario(_Strict):
    """The whole document. See the module text.

    :param absent_file_id: how a file that does not exist is shown: null, an empty string, not at all, an
        empty object, or (``empty_file``) as the id of a file without bytes.
    :param unknown_models: models that validation refuses with ``model_not_found``.
    :param files_ready_after: the first looks at an upload that show it as not ready yet (Azure, Gemini); a
        batch of such a file is refused.
    :param type_drift: Azure shows batches as its older samples do: capitalised status, ISO times, nulls among
        the counts, ``""`` for files that do not exist.
    :param anthropic: see :class:`AnthropicQuirks`.
    :param gemini: see :class:`GeminiQuirks`.
    """

    rows: tuple[RowRule, ...] = ()
    batches: tuple[BatchRule, ...] = ()
    calls: tuple[CallRule, ...] = ()
    pace: Pace = Pace()
    results: Results = Results()
    absent_file_id: Literal["null", "empty", "absent", "object", "empty_file"] = "null"
    unknown_models: tuple[str, ...] = ()
    files_ready_after: Annotated[int, Field(ge=0)] = 0
    type_drift: bool = False
    anthropic: AnthropicQuirks = AnthropicQuirks()
    gemini: GeminiQuirks = GeminiQuirks()


def parse_scenario(document: bytes | str) -> Scenario:
    """Read a scenario.

    :raises ConfigurationError: not JSON, or a field is unknown or wrong; the message names each place.
    """
    try:
        return Scenario.model_validate_json(document)
    except ValidationError as e:
        places = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'document'}: {error['msg']}"
            for error in e.errors(include_url=False, include_input=False, include_context=False)
        )
        raise ConfigurationError(f"scenario: {places}") from e


def dump_scenario(scenario: Scenario) -> str:
    """Return the document with every field in it."""
    return json.dumps(scenario.model_dump(mode="json"), ensure_ascii=False)
