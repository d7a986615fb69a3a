"""What a service's answers look like: names and kinds of members, states, statuses. No other values."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from airflow_batch_llm.backends.base import ApiClient

#: Members whose values are words of the protocol: states, kinds, codes.
_WORDS = frozenset(
    {
        "@type", "code", "completion_window", "error_type", "finishReason", "finish_reason", "object",
        "processing_status", "purpose", "role", "service_tier", "state", "status", "stop_reason", "type",
    }
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_.:/ -]{1,80}")
#: A part of a path that is an id: long, with a digit in it. The name of a model is taken for one, too.
_ID = re.compile(r"(?=[^:]*\d)[^:/]{8,}")
_TOLD_HEADERS = re.compile(r"retry-after|x-ratelimit-|.*-ratelimit-|x-should-retry")
_DOWNLOADS = ("/content", "/results", ":download")
_KINDS = {str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}


@dataclass
class Shape:
    """The members of the objects of one kind.

    :param seen: path of a member -> kinds of its values; null is none.
    :param words: path of a member -> its values, of members that are words of the protocol.
    """

    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    words: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, value: Any, path: str = "") -> None:
        """Take in one object."""
        if isinstance(value, list):
            for item in value:
                self.add(item, f"{path}[]")
            return
        if not isinstance(value, dict):
            return
        for name, inner in value.items():
            here = f"{path}.{name}" if path else name
            kinds = self.seen[here]
            if inner is not None:
                kinds.add(_KINDS[type(inner)])
            if name in _WORDS and isinstance(inner, str | int) and _WORD.fullmatch(str(inner)):
                self.words[here].add(str(inner))
            self.add(inner, here)


@dataclass
class Recording:
    """What one trial has shown.

    :param base_url: of the service; paths are told without it.
    :param shapes: ``GET /batches/{} 200`` or ``row of output`` -> what was in it.
    :param headers: names of headers about limits, with the call that had them.
    """

    base_url: str
    shapes: defaultdict[str, Shape] = field(default_factory=lambda: defaultdict(Shape))
    headers: set[str] = field(default_factory=set)

    async def hook(self, reply: httpx.Response) -> None:
        """Take in a reply; for httpx's event hooks."""
        call = f"{reply.request.method} {self.path(reply.request.url)}"
        shape = self.shapes[f"{call} {reply.status_code}"]
        self.headers |= {f"{call}: {name}" for name in reply.headers if _TOLD_HEADERS.match(name.lower())}
        if reply.is_success and reply.request.url.path.endswith(_DOWNLOADS):
            return  # result rows are read from where they are kept
        if "json" not in reply.headers.get("content-type", ""):
            return
        await reply.aread()
        with contextlib.suppress(ValueError):
            shape.add(reply.json())

    def path(self, url: httpx.URL) -> str:
        """Return the path of a call without the base and with ``{}`` in place of ids."""
        path = url.path.removeprefix(urlsplit(self.base_url).path.rstrip("/"))
        # A file's id may be letters alone, by chance.
        path = re.sub(r"/files/[^:/]+", "/files/{}", path)
        return "/".join(_ID.sub("{}", part, count=1) for part in path.split("/"))

    def add_rows(self, kind: str, lines: Iterable[bytes]) -> None:
        """Take in lines of a result file."""
        shape = self.shapes[f"row of {kind}"]
        for line in lines:
            with contextlib.suppress(ValueError):
                shape.add(json.loads(line))

    def save(self, path: Path) -> None:
        """Keep what was seen, for a run that goes on later."""
        shapes = {
            name: [
                {key: sorted(values) for key, values in part.items()} for part in (shape.seen, shape.words)
            ]
            for name, shape in self.shapes.items()
        }
        path.write_text(json.dumps({"shapes": shapes, "headers": sorted(self.headers)}), "utf-8")

    def load(self, path: Path) -> None:
        """Take in what an earlier run has seen, if it has come to that."""
        if not path.exists():
            return
        kept = json.loads(path.read_text("utf-8"))
        self.headers |= set(kept["headers"])
        for name, (seen, words) in kept["shapes"].items():
            for known, found in ((self.shapes[name].seen, seen), (self.shapes[name].words, words)):
                for key, values in found.items():
                    known[key] |= set(values)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take in every reply to our clients within."""
        plain = ApiClient.http

        def http(client: ApiClient) -> httpx.AsyncClient:
            made = plain(client)
            if self.hook not in made.event_hooks["response"]:
                made.event_hooks["response"].append(self.hook)
            return made

        ApiClient.http = http  # type: ignore[method-assign]
        try:
            yield
        finally:
            ApiClient.http = plain  # type: ignore[method-assign]
