"""What a job came to, so that two jobs can be compared."""

from __future__ import annotations

from typing import Any

from tests.job_bench import Bench


def came_to(bench: Bench) -> Any:
    """What a job came to, in the terms of its users: no ids of the job, no times."""
    answers = {
        a.custom_id: (a.output, a.model, a.usage, a.finish_reason, a.round, a.key) for a in bench.answers()
    }
    letters = {
        x.custom_id: (
            x.verdict,
            x.code,
            x.message,
            x.exhausted,
            x.usage,
            x.state,
            [(a.round, a.verdict, a.code, a.charged, a.input, a.output) for a in x.attempts],
        )
        for x in bench.letters()
    }
    counts = {k: v for k, v in bench.job().counts.items() if k != "landed"}
    batches = [
        (b.round, b.seq, b.state, b.model, b.requests, dict(b.counts), b.usage) for b in bench.batches()
    ]
    return answers, letters, counts, batches
