"""Result rows of every kind, as strategies: any rows, in any order, over any files, cut into any pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.canned_provider import Files
from tests.replay_provider import answer, failure, unexecuted


def _said(wire_id: str, message: dict[str, Any], finish: str, tokens: int = 1) -> dict[str, Any]:
    row = answer(wire_id)
    row["response"]["body"]["choices"] = [{"message": message, "finish_reason": finish}]
    row["response"]["body"]["usage"] = {"prompt_tokens": 5, "completion_tokens": tokens}
    return row


def _call(name: str) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": "t", "function": {"name": name, "arguments": "{}"}}]}


def _in_a_string(row: dict[str, Any]) -> dict[str, Any]:
    row["response"]["body"] = json.dumps(row["response"]["body"])
    return row


#: kind -> (wire id, variant) -> row. Variants say different things.
KINDS: dict[str, Callable[[str, int], Any]] = {
    "answer": lambda w, v: _said(w, {"content": f"text {v}"}, "stop", v),
    "answer with other usage": lambda w, v: _said(w, {"content": "text 0"}, "stop", 7 + v),
    "body in a string": lambda w, v: _in_a_string(_said(w, {"content": f"text {v}"}, "stop", v)),
    "without envelope": lambda w, v: {"custom_id": w, "response": answer(w, f"text {v}")["response"]["body"]},
    "call": lambda w, v: _said(w, _call(f"f{v}"), "tool_calls"),
    "truncated": lambda w, v: _said(w, {"content": f"so far {v}"}, "length", v),
    "filtered": lambda w, v: _said(w, {"content": f"so far {v}"}, "content_filter"),
    "refused": lambda w, v: _said(w, {"content": None, "refusal": f"no {v}"}, "stop"),
    "empty": lambda w, v: _said(w, {"content": " " * v}, "stop"),
    "too large": lambda w, v: failure(w, 400, {"code": "context_length_exceeded", "message": f"m {v}"}),
    "bad request": lambda w, v: failure(w, 400, {"code": f"invalid_{v}", "message": "m"}),
    "rate limited": lambda w, v: failure(w, 429, {"message": f"m {v}"}),
    "server error": lambda w, v: failure(w, 500 + v, {"message": "m"}),
    "timeout": lambda w, v: unexecuted(w, "request_timeout"),
    "expired": lambda w, v: unexecuted(w, "batch_expired"),
    "cancelled": lambda w, v: unexecuted(w, ["batch_cancelled", "runner_lost", "batch_failed"][v]),
    "error text": lambda w, v: {"custom_id": w, "response": None, "error": f"engine {v} is dead"},
    "says nothing": lambda w, v: {"custom_id": w, "response": [None, {}, "text"][v], "error": None},
    "other protocol": lambda w, v: {"recordId": w, "modelOutput": {"text": str(v)}},
    "no id": lambda w, v: {**answer(w), "custom_id": [None, "", 7][v]},
    "foreign": lambda w, v: answer(f"w-foreign-{v}"),
    "half a line": lambda w, v: json.dumps(answer(w)).encode()[: 40 + 9 * v],
    "no JSON": lambda w, v: [b"\xff\xfe\x00", b"null", b"words"][v],
    "blank": lambda w, v: b" " * v,
}


@dataclass(frozen=True)
class Line:
    """One line of a result file: which request it is about, and what it says."""

    place: int
    kind: str
    variant: int

    def encoded(self, wire_ids: Sequence[str]) -> bytes:
        """Return its bytes, without an end."""
        row = KINDS[self.kind](wire_ids[self.place % len(wire_ids)], self.variant)
        return row if isinstance(row, bytes) else json.dumps(row, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Arrangement:
    """Lines in an order, spread over files, with ends of their own.

    :param files: the place of each line's file; :param crlf: ends lines so; :param mark: begins each file.
    """

    lines: tuple[Line, ...]
    files: tuple[int, ...]
    crlf: bool
    mark: bool
    open_end: bool

    def __call__(self, wire_ids: Sequence[str]) -> Files:
        end = b"\r\n" if self.crlf else b"\n"
        found: dict[int, list[bytes]] = {0: []}
        for line, file in zip(self.lines, self.files, strict=True):
            found.setdefault(file, []).append(line.encoded(wire_ids))
        return [
            (
                "error" if file == 1 else "output",
                (b"\xef\xbb\xbf" if self.mark else b"")
                + end.join(lines)
                + (b"" if self.open_end or not lines else end),
            )
            for file, lines in sorted(found.items())
        ]


def lines(rows: int, *, most: int = 12, without: Sequence[str] = ()) -> st.SearchStrategy[list[Line]]:
    """Lines about any of ``rows`` requests."""
    kinds = st.sampled_from([kind for kind in KINDS if kind not in without])
    return st.lists(st.builds(Line, st.integers(0, rows - 1), kinds, st.integers(0, 2)), max_size=most)


@st.composite
def arranged(draw: st.DrawFn, of: Sequence[Line]) -> Arrangement:
    """These lines, in any order, over up to three files."""
    order = draw(st.permutations(of))
    files = draw(st.lists(st.integers(0, 2), min_size=len(of), max_size=len(of)))
    return Arrangement(tuple(order), tuple(files), *(draw(st.booleans()) for _ in range(3)))
