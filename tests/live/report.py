"""The report of a trial, in Markdown: counts, shapes and words of the protocol; no answer and no key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

from airflow_batch_llm import __version__
from tests.live.differences import differences
from tests.live.recording import Recording
from tests.live.rows import PARTS
from tests.live.trial import Trial


def report(trial: Trial, reference: Recording, bound: float) -> str:
    """Return the report.

    :param bound: what the rows may have cost at most, USD.
    """
    return "\n".join(_lines(trial, reference, bound)) + "\n"


def _lines(trial: Trial, reference: Recording, bound: float) -> Iterator[str]:
    service, now = trial.service, datetime.now(UTC)
    yield f"# {service.provider.title or service.name}, {now:%Y-%m-%d}"
    yield ""
    speaks = f"provider `{service.name}`, protocol `{service.provider.protocol}`"
    yield f"- airflow-batch-llm {__version__}, {speaks}"
    yield f"- {urlsplit(service.address).hostname}, model `{service.model}`"
    yield f"- at most {bound:.4f} USD (synchronous prices; a batch costs half or so)"
    if trial.sound():
        yield f'- sound: `live_tested="{now:%Y-%m}"` may be written into the row of the provider'
    else:
        yield "- **not sound**: see below"
    yield from _outcomes(trial)
    yield from _batches(trial)
    yield ""
    yield "## Differences from the reference"
    yield ""
    found = differences(trial.recording, reference)
    yield from (f"- {line}" for line in found)
    yield from () if found else ("none seen",)
    yield from _list("States and other words of the protocol", list(_words(trial.recording)))
    yield from _list("Headers about limits", sorted(trial.recording.headers))
    yield from _list("Warnings of this package", sorted(trial.warnings.messages))
    yield from _list("Calls and rows seen", [f"`{name}`" for name in sorted(trial.recording.shapes)])


def _outcomes(trial: Trial) -> Iterator[str]:
    yield ""
    yield "## Rows"
    yield ""
    yield "| job | rows | how they ended |"
    yield "| --- | --- | --- |"
    for part in PARTS:
        ended = ", ".join(f"{count} {what}" for what, count in trial.tally(part.name).items())
        yield f"| {part.name} | {part.rows} | {trial.faults.get(part.name) or ended or 'nothing'} |"
    yield ""
    usage = ", ".join(f"{name} {count:,}" for name, count in trial.usage().items())
    yield f"Tokens of the answers: {usage or 'none told'}."


def _batches(trial: Trial) -> Iterator[str]:
    yield ""
    yield "## Batches"
    yield ""
    yield "| requests | id begins with | ended as | seconds from the create call |"
    yield "| --- | --- | --- | --- |"
    for batch in trial.batches():
        took = batch.ended_at - batch.submitted_at if batch.ended_at and batch.submitted_at else None
        begins = (batch.provider_batch_id or "")[:8]
        seconds = f"{took:.0f}" if took is not None else ""
        yield f"| {batch.requests} | `{begins}` | {batch.provider_status or batch.state} | {seconds} |"


def _words(recording: Recording) -> Iterator[str]:
    for name, shape in sorted(recording.shapes.items()):
        for path, words in sorted(shape.words.items()):
            yield f"`{name}`: `{path}` {', '.join(sorted(words))}"


def _list(title: str, items: list[str]) -> Iterator[str]:
    if items:
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- {item}" for item in items)
