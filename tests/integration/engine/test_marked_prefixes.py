"""``cache_prefix``: part of what was asked for as long as the job lives, and of no request's identity."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.ports import LineEncoder
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Until
from tests.integration.engine.server_since import ServerSince
from tests.job_bench import CHAT, Bench

MARKED = RequestTemplate(CHAT, "m-1", {"max_tokens": 100}, cache_prefix=True)
TEXTS = {"a": "first", "b": "second", "c": "third"}


class Watched:
    """A backend whose templates are noted."""

    def __init__(self, backend: Any, seen: list[bool]) -> None:
        self._backend, self._seen = backend, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def line_encoder(self, template: RequestTemplate) -> LineEncoder:
        self._seen.append(template.cache_prefix)
        encoder: LineEncoder = self._backend.line_encoder(template)
        return encoder


def test_retry_rounds_and_later_tries_mark_the_prefix_as_the_first_round_did(
    bench: Callable[..., Bench], server: ServerSince
) -> None:
    server.set_scenario({"rows": [{"fault": "server_error", "times": 1}]})
    seen: list[bool] = []
    job = bench(
        texts=TEXTS,
        template=MARKED,
        policy=RowRetry(max_rounds=2, delay=0),
        around_backend=lambda backend: Watched(backend, seen),
    )

    job.until(Until.ENDED, submitting=True)
    later = job.retry(template=RequestTemplate(CHAT, "another"))  # what later tasks do not say
    later.until(Until.RETRIED)
    later.until(Until.SETTLED)

    assert later.job().round >= 1
    assert seen and all(seen)
    job.assert_accounted()


def test_a_plan_of_before_there_were_prefixes_is_read(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (path,) = job.root.glob("plan-*/job.json")
    described = json.loads(path.read_bytes())
    del described["template"]["cache_prefix"]
    path.write_text(json.dumps(described))

    assert job.tools().template(job.job()).cache_prefix is False
    job.retry().until(Until.SETTLED)
    job.assert_accounted()


def test_what_is_marked_later_is_neither_sent_nor_paid_again(
    bench: Callable[..., Bench], server: ServerSince
) -> None:
    first = bench(texts=TEXTS, reuse=Reuse(scope="task"))
    first.run()
    executed = server.summary()["executed"]

    cleared = first.clear(template=MARKED)
    cleared.run()
    other = bench(texts=TEXTS, template=MARKED, reuse=Reuse(scope="task"))
    other.run()

    assert server.summary()["executed"] == executed
    cleared.assert_accounted()
    other.assert_accounted()
