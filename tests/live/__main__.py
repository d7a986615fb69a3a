"""``python -m tests.live``: what ``make live`` runs. docs/live.md has the variables that it reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from airflow_batch_llm.backends import make_backend
from airflow_batch_llm.core.spec import Settings
from airflow_batch_llm.exceptions import BatchLLMError
from tests.live.prices import bound_usd, read_cap, read_prices
from tests.live.recording import Recording
from tests.live.reference import NoReference, references_of
from tests.live.report import report
from tests.live.services import Service, services
from tests.live.trial import Trial, run_to_the_end

OK, FAILED, WRONG, UNFINISHED = 0, 1, 2, 3
_RULE = "=" * 100
_MINUTES = 60.0
_PAUSE = 20.0


def main(
    environ: Mapping[str, str] | None = None, *, settings: Settings | None = None, pause: float = _PAUSE
) -> int:
    """Try every service that the environment has a key for.

    :param settings: waiting times of the engine; None for its own.
    :param pause: seconds between two looks.
    :returns: 0 all sound, or nothing to try; 1 something is not, or too dear; 2 a variable that cannot be
        read; 3 some have not ended: run it again.
    """
    environ = os.environ if environ is None else environ
    try:
        known, cap, prices = services(environ), read_cap(environ), read_prices(environ)
        minutes = float(environ.get("LIVE_MINUTES") or _MINUTES)
    except ValueError as error:
        print(f"make live: {error}", file=sys.stderr)
        return WRONG
    ready = [service for service in known if not service.missing]
    _tell_missing(known, nothing=not ready)
    if not ready:
        return OK
    folder = Path(environ.get("LIVE_DIR") or ".live")
    try:
        bounds = {service.name: _bound(service, prices) for service in ready}
        for name, bound in bounds.items():
            print(f"{name}: at most {bound:.4f} USD")
        if sum(bounds.values()) > cap:
            _tell_too_dear(sum(bounds.values()), cap)
            return FAILED
        references = references_of(ready, folder)
    except (BatchLLMError, NoReference) as error:
        print(f"make live: {error}; nothing was sent", file=sys.stderr)
        return WRONG
    trials = {
        service.name: Trial(service, folder / service.name, settings or Settings()) for service in ready
    }
    run_to_the_end(list(trials.values()), seconds=minutes * 60.0, pause=pause)
    return max([_finish(trial, references[name], bounds[name], folder) for name, trial in trials.items()])


def _finish(trial: Trial, reference: Recording, bound: float, folder: Path) -> int:
    """Write the report of a trial, or say that it has not ended."""
    name = trial.service.name
    if not trial.done:
        print(_banner(f"{name}: NOT ENDED YET. Run `make live` again: it goes on with the same batches"))
        return UNFINISHED
    trial.close()
    path = folder / f"{name}-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.md"
    path.write_text(report(trial, reference, bound), "utf-8")
    trial.forget()  # a run that goes on keeps its reference, a new one makes its own
    sound = trial.sound()
    print(f"{name}: {'sound' if sound else 'NOT SOUND'}; {path}")
    return OK if sound else FAILED


def _bound(service: Service, prices: Mapping[str, tuple[float, float]]) -> float:
    backend = make_backend(
        service.name, base_url=service.base_url, api_key=service.api_key, options=service.options
    )
    return bound_usd(service, backend, prices)


def _tell_missing(known: Sequence[Service], *, nothing: bool) -> None:
    for service in known:
        if service.missing:
            print(f"NOT TESTED: {service.name:<12} missing: {', '.join(service.missing)}")
    if nothing:
        print(_banner("NOTHING WAS TESTED: the environment has no key of any service (docs/live.md)"))


def _tell_too_dear(bound: float, cap: float) -> None:
    print(_banner(f"NOTHING WAS SENT: it may cost {bound:.4f} USD, and LIVE_MAX_USD is {cap:g}"))
    print("Give LIVE_PRICES for your models, a larger LIVE_MAX_USD, or fewer services in LIVE_ONLY.")


def _banner(text: str) -> str:
    return f"{_RULE}\n{text}\n{_RULE}"


if __name__ == "__main__":
    sys.exit(main())
