"""A ledger that does not know a job although the provider holds batches of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import LedgerLost
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.job_bench import Bench

TEXTS = {"t-1": "one", "t-2": "two"}


def test_a_replaced_ledger_asks_the_provider_before_it_pays_again(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    b = bench(texts=TEXTS)
    b.run()
    lost = replace(b, ledger=open_default_sqlite(tmp_path / "new.db"), first_try=False)
    lost.ledger.namespace()  # made in the same second, perhaps
    with pytest.raises(LedgerLost, match="nothing was sent"):
        lost.step(Until.ENDED, submitting=True)
    assert b.creates() == 1


def test_a_ledger_set_back_to_before_the_job_finds_the_workspace_and_asks(
    bench: Callable[..., Bench],
) -> None:
    b = bench(texts=TEXTS)
    b.run()
    forget_job(b)
    with pytest.raises(LedgerLost):
        b.step(Until.ENDED, submitting=True)
    assert b.creates() == 1


def test_another_deployment_with_the_same_key_is_no_lost_ledger(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    ours = bench(texts=TEXTS)
    ours.ledger.namespace()
    with ours.ledger.engine.begin() as connection:  # it was made some time before their batch
        connection.execute(
            text("UPDATE batch_llm_meta SET value = :at WHERE name = 'namespace_made_at'"),
            {"at": str(ours.ledger.now() - 60)},
        )
    theirs = replace(ours, ledger=open_default_sqlite(tmp_path / "theirs.db"), folder=tmp_path / "theirs")
    theirs.run()
    ours.first_try = False
    ours.run()
    assert ours.creates() == 2
    assert len(ours.answers()) == len(theirs.answers()) == 2


def forget_job(b: Bench) -> None:
    with b.ledger.engine.begin() as connection:
        for table in ("batch_llm_event", "batch_llm_batch", "batch_llm_job"):
            connection.execute(text(f"DELETE FROM {table}"))
