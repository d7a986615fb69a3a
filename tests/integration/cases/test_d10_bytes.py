"""D10: byte order marks, carriage returns, blank lines and a last line without its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.cases.conftest import Case
from tests.job_bench import Bench
from tests.replay_provider import ReplayProvider, answer, as_lines

BOM = b"\xef\xbb\xbf"

#: Ways in which two lines may be laid out as a file.
LAYOUTS = {
    "as it should be": b"%s\n%s\n",
    "carriage returns": b"%s\r\n%s\r\n",
    "no last end": b"%s\n%s",
    "no last end after a carriage return": b"%s\r\n%s\r",
    "blank lines first": b"\n\r\n%s\n%s\n",
    "blank lines between": b"%s\n\n \n\t\r\n%s\n",
    "blank lines last": b"%s\n%s\n\n\r\n   ",
    "a mark": BOM + b"%s\n%s\n",
    "a mark and a blank line": BOM + b"\r\n%s\r\n%s",
    "a mark alone on its line": BOM + b"\n%s\n%s\n",
    "marked files laid end to end": BOM + b"%s\n" + BOM + b"%s\n",
    "a mark at the end": b"%s\n%s\n" + BOM,
    "white space around": b"  %s \t\n\t%s  \r\n",
}


def assert_clean(server: ReplayProvider) -> None:
    """What was uploaded has no mark, no carriage return, no empty line, and ends in one newline."""
    assert set(server.statuses()) == {200}
    for data in server.uploads:
        assert not data.startswith(BOM) and b"\r" not in data
        assert all(data.removesuffix(b"\n").split(b"\n"))
        assert data.endswith(b"}\n")


def test_d10_two_rows_in_two_answers_out_and_clean_bytes_between(
    case: Callable[[str], Case], provider: Callable[..., ReplayProvider], job: Callable[..., Bench]
) -> None:
    d10 = case("D10")
    server = provider(d10.replay())
    bench = job(server, d10.input)
    bench.run()
    assert {a.custom_id: a.output for a in bench.answers()} == {"r-1": "A", "r-2": "B"}
    assert server.sent() == [["a", "b"]]
    assert_clean(server)
    bench.assert_accounted(["r-1", "r-2"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d10_however_the_input_is_laid_out_its_two_rows_are_sent(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
    layout: str,
) -> None:
    server = provider()
    bench = job(server, write(LAYOUTS[layout] % tuple(case("D10").lines("input.jsonl"))))
    bench.run()
    assert server.sent() == [["a", "b"]]
    assert_clean(server)
    bench.assert_accounted(["r-1", "r-2"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d10_however_the_result_file_is_laid_out_its_two_rows_land(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    layout: str,
) -> None:
    rows = [as_lines(answer(custom_id, f"A{custom_id}")).strip() for custom_id in ("r-2", "r-1")]
    d10 = case("D10")
    server = provider(d10.replay(files={"file-out": LAYOUTS[layout] % tuple(rows)}))
    bench = job(server, d10.input)
    bench.run()
    assert {a.custom_id: a.output for a in bench.answers()} == {"r-1": "Ar-1", "r-2": "Ar-2"}
    assert server.sent() == [["a", "b"]]
    bench.assert_accounted(["r-1", "r-2"])


def test_d10_what_looks_like_a_line_end_inside_a_text_stays_as_it_is(
    case: Callable[[str], Case],
    provider: Callable[..., ReplayProvider],
    job: Callable[..., Bench],
    write: Callable[[bytes], Path],
) -> None:
    text = "a\r\nb\u2028c\u2029d\u0085e\x0bf\x0cg\ufeffh\x1ci"
    rows = "".join(f"{json.dumps({'id': n, 'prompt': text}, ensure_ascii=n == 1)}\n" for n in (1, 2))
    d10 = case("D10")
    said = as_lines(*(answer(custom_id, text) for custom_id in ("r-1", "r-2")))
    replay = d10.replay(files={"file-out": said})
    replay.texts = {"r-1": f"1 {text}", "r-2": f"2 {text}"}
    server = provider(replay)
    bench = job(server, rows=write(rows.encode()), prompt="{{ row.id }} {{ row.prompt }}")
    bench.run()
    assert server.sent() == [[f"1 {text}", f"2 {text}"]]
    assert [a.output for a in bench.answers()] == [text, text]
    assert_clean(server)


@pytest.mark.parametrize(
    "data", [BOM + b"{}\n", b"{}\r\n", b"{}\n\n", b"\n{}\n", b"{}", b'{"x":NaN}\n', b'{"x":"\\ud83d"}\n']
)
def test_d10_the_provider_of_these_tests_refuses_what_it_should(
    provider: Callable[..., ReplayProvider], data: bytes
) -> None:
    server = provider()
    reply = httpx.post(f"{server.url}/files", files={"file": ("x.jsonl", data)}, data={"purpose": "batch"})
    assert reply.status_code == 400
    assert server.uploads == []
