"""Where a service differs from the reference, which the local server is written from and speaks for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.live.recording import Recording, Shape


def differences(live: Recording, reference: Recording) -> list[str]:
    """Return what was seen of the service and not of the reference, and the other way round, a line each.

    Only calls that both have shown are compared member by member: a job that needed no second page shows
    none. A member that is absent in one and null in the other is no difference.
    """
    found = list(_calls(live, reference))
    for name in sorted(live.shapes.keys() & reference.shapes.keys()):
        found += [f"`{name}`: {what}" for what in _members(live.shapes[name], reference.shapes[name])]
    return found


def _calls(live: Recording, reference: Recording) -> Iterator[str]:
    for name in sorted(live.shapes.keys() - reference.shapes.keys()):
        members = ", ".join(f"`{path}`" for path in sorted(live.shapes[name].seen)[:40])
        yield f"`{name}`: not seen of the reference" + (f"; its members: {members}" if members else "")
    for name in sorted(reference.shapes.keys() - live.shapes.keys()):
        if name.startswith("row of "):
            yield f"`{name}`: the reference has such rows, the service had none"


def _members(live: Shape, reference: Shape) -> Iterator[str]:
    for path in sorted(live.seen.keys() - reference.seen.keys()):
        kinds = "/".join(sorted(live.seen[path])) or "null"
        yield f"`{path}` ({kinds}) is not in the reference"
    for path in sorted(reference.seen.keys() - live.seen.keys()):
        if reference.seen[path]:
            yield f"`{path}` ({'/'.join(sorted(reference.seen[path]))}) was not there"
    for path in sorted(live.seen.keys() & reference.seen.keys()):
        here, there = live.seen[path], reference.seen[path]
        if here and there and here != there:
            yield f"`{path}` is {'/'.join(sorted(here))}, in the reference {'/'.join(sorted(there))}"
        new = live.words[path] - reference.words[path] if path in live.words else set()
        if new:
            known = ", ".join(sorted(reference.words[path])) or "nothing"
            yield f"`{path}` was also {', '.join(sorted(new))}; of the reference: {known}"
