"""Rows of the ledger to and from the values of ``core/model.py``."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from sqlalchemy import RowMapping

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import (
    Attempt,
    Batch,
    BatchKind,
    BatchState,
    DeadLetter,
    Event,
    Hold,
    HoldOrigin,
    Job,
    JobKey,
    JobState,
    LetterState,
    Place,
    Usage,
)
from airflow_batch_llm.core.verdicts import Verdict

_attempts = msgspec.json.Decoder(tuple[Attempt, ...])


def json_text(value: Any) -> str:
    """Write a JSON column: sorted keys, no white space."""
    return dumps_canonical(value).decode("utf-8")


def clean_text(text: str) -> str:
    """Make free text storable anywhere: no U+0000 (PostgreSQL), no half surrogate pairs (UTF-8)."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


def job_from(row: RowMapping) -> Job:
    """Read a row of ``batch_llm_job``."""
    return Job(
        job_id=row["job_id"],
        key=_key_from(row),
        conn_id=row["conn_id"],
        provider=row["provider"],
        endpoint=row["endpoint"],
        model=row["model"],
        state=JobState(row["state"]),
        revision=row["revision"],
        floor_revision=row["floor_revision"],
        round=row["round"],
        version=row["version"],
        plan_id=row["plan_id"],
        plan_digest=row["plan_digest"],
        counts=msgspec.json.decode(row["counts"]),
        seen=msgspec.json.decode(row["seen"]),
        deadline_at=row["deadline_at"],
        halt_code=row["halt_code"],
        settled_at=row["settled_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def batch_from(row: RowMapping) -> Batch:
    """Read a row of ``batch_llm_batch``."""
    return Batch(
        batch_id=row["batch_id"],
        job_id=row["job_id"],
        kind=BatchKind(row["kind"]),
        revision=row["revision"],
        round=row["round"],
        seq=row["seq"],
        state=BatchState(row["state"]),
        conn_id=row["conn_id"],
        provider=row["provider"],
        model=row["model"],
        overrides=msgspec.json.decode(row["overrides"]),
        plan_id=row["plan_id"],
        path=row["path"],
        requests=row["requests"],
        bytes=row["bytes"],
        sha256=row["sha256"],
        upload_bytes=row["upload_bytes"],
        est_input_tokens=row["est_input_tokens"],
        max_output_tokens=row["max_output_tokens"],
        attempt=row["attempt"],
        lease_until=row["lease_until"],
        not_before=row["not_before"],
        first_look_at=row["first_look_at"],
        input_file_id=row["input_file_id"],
        provider_batch_id=row["provider_batch_id"],
        provider_status=row["provider_status"],
        submitted_at=row["submitted_at"],
        ended_at=row["ended_at"],
        cancel_asked_by=row["cancel_asked_by"],
        cancel_asked_at=row["cancel_asked_at"],
        error_code=row["error_code"],
        files=tuple(msgspec.json.decode(row["files"])),
        outcomes_sha256=row["outcomes_sha256"],
        judge=row["judge"],
        counts=msgspec.json.decode(row["counts"]),
        usage=_usage_from(row),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        provisional=bool(row["provisional"]),
        not_ours=tuple(msgspec.json.decode(row["not_ours"] or "[]")),
        place=None if row["address"] is None else Place(row["address"], row["account"] or ""),
    )


def letter_values(letter: DeadLetter) -> dict[str, Any]:
    """Write a new row of ``batch_llm_dead_letter``, without its times."""
    return {
        "job_id": letter.job_id,
        "wire_id": letter.wire_id,
        "namespace": letter.key.namespace,
        "dag_id": letter.key.dag_id,
        "run_id": letter.key.run_id,
        "task_id": letter.key.task_id,
        "map_index": letter.key.map_index,
        "revision": letter.revision,
        "provider": letter.provider,
        "state": LetterState.OPEN.value,
        "actor": clean_text(letter.actor),
        "reason": clean_text(letter.reason),
        "changes": "",
        **letter_news(letter),
    }


def letter_news(letter: DeadLetter) -> dict[str, Any]:
    """Return the columns that a further attempt brings up to date.

    The id is one of them: the row may have been erased, and then been asked for anew.
    """
    custom_id, custom_id_as = custom_id_values(letter.custom_id)
    return {
        "custom_id": custom_id,
        "custom_id_as": custom_id_as,
        "model": letter.model,
        "verdict": letter.verdict.value,
        "code": clean_text(letter.code),
        "message": clean_text(letter.message),
        "exhausted": letter.exhausted,
        "request_path": letter.request_path,
        "attempts": json_text(letter.attempts),
        "attempt_count": len(letter.attempts),
        **usage_values(letter.usage),
    }


def attempts_from(text: str) -> tuple[Attempt, ...]:
    """Read the attempts of a letter."""
    return _attempts.decode(text)


def letter_from(row: RowMapping) -> DeadLetter:
    """Read a row of ``batch_llm_dead_letter``."""
    custom_id = row["custom_id"]
    return DeadLetter(
        job_id=row["job_id"],
        wire_id=row["wire_id"],
        custom_id=json.loads(custom_id) if row["custom_id_as"] == "json" else custom_id,
        key=_key_from(row),
        revision=row["revision"],
        provider=row["provider"],
        model=row["model"],
        verdict=Verdict(row["verdict"]),
        code=row["code"],
        message=row["message"],
        exhausted=row["exhausted"],
        request_path=row["request_path"],
        attempts=attempts_from(row["attempts"]),
        usage=_usage_from(row),
        state=LetterState(row["state"]),
        actor=row["actor"],
        reason=row["reason"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def event_from(row: RowMapping) -> Event:
    """Read a row of ``batch_llm_event``."""
    return Event(
        time=row["time"],
        job_id=row["job_id"],
        batch_id=row["batch_id"],
        actor=row["actor"],
        action=row["action"],
        reason=row["reason"],
    )


def hold_from(row: RowMapping) -> Hold:
    """Read a row of ``batch_llm_hold``."""
    return Hold(
        conn_id=row["conn_id"],
        code=row["code"],
        origin=HoldOrigin(row["origin"]),
        job_id=row["job_id"],
        batch_id=row["batch_id"],
        actor=row["actor"],
        reason=row["reason"],
        held_at=row["held_at"],
        probe_at=row["probe_at"],
        probes=row["probes"],
        probe_batch_id=row["probe_batch_id"],
        version=row["version"],
    )


def usage_values(usage: Usage) -> dict[str, int]:
    """Return the five token columns."""
    return {
        "usage_input": usage.input,
        "usage_output": usage.output,
        "usage_cached": usage.cached,
        "usage_cache_write": usage.cache_write,
        "usage_reasoning": usage.reasoning,
    }


def _usage_from(row: RowMapping) -> Usage:
    return Usage(
        input=row["usage_input"],
        output=row["usage_output"],
        cached=row["usage_cached"],
        cache_write=row["usage_cache_write"],
        reasoning=row["usage_reasoning"],
    )


def _key_from(row: RowMapping) -> JobKey:
    return JobKey(
        namespace=row["namespace"],
        dag_id=row["dag_id"],
        run_id=row["run_id"],
        task_id=row["task_id"],
        map_index=row["map_index"],
    )


def custom_id_values(custom_id: str) -> tuple[str, str]:
    """Return an id as it is, or as an ASCII JSON string where a database could not keep its characters."""
    if clean_text(custom_id) == custom_id:
        return custom_id, "text"
    return json.dumps(custom_id), "json"
