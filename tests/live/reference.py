"""The reference: the same twenty rows over the same protocol against the local server, for nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.job_bench import QUICK
from tests.live.recording import Recording
from tests.live.rows import REFUSED
from tests.live.services import Service
from tests.live.trial import Trial, run_to_the_end
from tests.local_server import LocalServer

#: What the local server is told, so that it shows what a service is expected to show.
SCENARIO = {
    "rows": [
        {
            "match": {"contains": REFUSED},
            "fault": "bad_request",
            "code": "invalid_value",
            "param": "temperature",
        }
    ]
}
#: Protocol -> what its batches are called on their way, by the provider's own documentation.
_STATES = {
    "openai": ("validating", "in_progress", "finalizing"),
    "azure": ("validating", "in_progress", "finalizing"),
    "anthropic": ("in_progress",),
    "gemini": ("BATCH_STATE_PENDING", "BATCH_STATE_RUNNING"),
    "mistral": ("QUEUED", "RUNNING"),
}
#: Looks at batches that run.
_LOOKS = 4
_SECONDS, _PAUSE = 120.0, 0.05


class NoReference(Exception):
    """The rows did not come through the local server, so nothing could be compared."""


def local(service: Service, server: LocalServer) -> Service:
    """Return the service as the local server plays it."""
    protocol = service.provider.protocol
    return replace(service, base_url=server.url_of(protocol), api_key=server.api_key, missing=())


def references_of(services: Sequence[Service], folder: Path) -> dict[str, Recording]:
    """Return what the local server shows of the rows over the protocol of each service, by its name.

    :param folder: where it is kept for a run that goes on.
    :raises NoReference: the rows did not come through.
    """
    kept = {service.name: folder / service.name / "reference.json" for service in services}
    missing = [service for service in services if not kept[service.name].exists()]
    if missing:
        with (
            tempfile.TemporaryDirectory(prefix="batch-llm-live-") as name,
            LocalServer(Path(name) / "server") as server,
        ):
            for service in missing:
                states = _STATES.get(service.provider.protocol, ())
                server.set_scenario({**SCENARIO, "pace": {"statuses": states, "seconds": 3600}})
                found = _played(server, local(service, server), Path(name) / service.name)
                kept[service.name].parent.mkdir(parents=True, exist_ok=True)
                found.save(kept[service.name])
    recordings = {service.name: Recording(service.address) for service in services}
    for name, recording in recordings.items():
        recording.load(kept[name])
    return recordings


def _played(server: LocalServer, service: Service, folder: Path) -> Recording:
    trial = Trial(service, folder, QUICK)
    for _ in range(_LOOKS):  # a batch that runs shows what one that has ended does not
        trial.step()
    server.set_scenario(SCENARIO)
    server.release()
    run_to_the_end([trial], seconds=_SECONDS, pause=_PAUSE)
    if not trial.done or not trial.sound():
        told = "; ".join(trial.faults.values()) or f"{trial.tally('plain')} {trial.tally('structured')}"
        raise NoReference(f"{service.name}: the local server did not answer the rows ({told})")
    trial.close()
    return trial.recording
