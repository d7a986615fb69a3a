"""A server of result files with rows of a given size, for ``reconcile``; prints its port, ends with stdin.

Besides answering every uploaded batch in full, it knows the batch ``common-<rows>``, whose rows carry ids
as common-ai makes them (``<key>-<index>``).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tests.replay_provider import ReplayProvider, answer, as_lines

COMMON_KEY = "0123456789abcdef"


class ResultServer(ReplayProvider):
    """Answers with rows of ``size`` bytes, end of line included."""

    def __init__(self, size: int, *, structured: bool) -> None:
        super().__init__(row=self.sized)
        self._size, self._structured = size, structured

    def sized(self, custom_id: str) -> dict[str, Any]:
        """Make a row of the wanted size."""
        row = answer(custom_id, self._text(0))
        return answer(custom_id, self._text(self._size - len(as_lines(row))))

    def _text(self, padding: int) -> str:
        if not self._structured:
            return "x" * padding
        return json.dumps({"label": "bug", "summary": "x" * padding}, separators=(",", ":"))

    def _reply(self, method: str, path: str, body: bytes, content_type: str) -> bytes:
        name = path.strip("/").split("/")[-1]
        if method == "GET" and name.startswith("common-") and name not in self._batches:
            rows = int(name.removeprefix("common-"))
            self._files[f"{name}-out"] = as_lines(*(self.sized(f"{COMMON_KEY}-{n}") for n in range(rows)))
            self._batches[name] = {
                "id": name,
                "object": "batch",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
                "created_at": 1_700_000_000,
                "status": "completed",
                "input_file_id": "file-in",
                "output_file_id": f"{name}-out",
            }
        return super()._reply(method, path, body, content_type)


def main() -> None:
    """Serve until stdin is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--row-bytes", type=int, required=True)
    parser.add_argument("--structured", action="store_true")
    args = parser.parse_args()
    with ResultServer(args.row_bytes, structured=args.structured) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
