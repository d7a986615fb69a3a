"""The provider's commonest message about the dead rows of a job, without what it may quote of them.

Airflow logs a task's error, and a provider's message may repeat what it was asked. So a message is shown
only where several rows share it to the letter, and only what is left of it without quoted pieces and
without every word that stands in the request of any of these rows.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from airflow_batch_llm.core.files import iter_requests
from airflow_batch_llm.core.ledger_port import Ledger
from airflow_batch_llm.core.model import DeadLetter, Job, LetterState
from airflow_batch_llm.core.shared_requests import SharedRequests
from airflow_batch_llm.core.tools import Tools
from airflow_batch_llm.exceptions import BatchLLMError

#: Rows that may share the message: the requests of all of them are read.
MOST_ROWS = 1000
_LEAST_ROWS = 2
#: Different messages that are counted, in the order they are met.
_COUNTED = 1000
#: Characters of a message that are looked at, and that are shown.
_READ, _SHOWN = 2000, 200
_HIDDEN = "…"
_HIDDEN_RUN = re.compile(r"…(?:(?:[^\w…]|_)*…)+")

#: Escapes within escapes that are undone.
_DEPTH = 4
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([nrtbfv])|([\"'`/\\]))")
#: Control characters, soft hyphens, joiners, marks of direction: they would split a word unseen.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_QUOTES = {
    "'": "'", '"': '"', "`": "`", "«": "»", "»": "«", "‹": "›", "“": "”", "”": "”",
    "„": "“”", "‘": "’", "‚": "‘’", "’": "’", "「": "」", "『": "』",
}  # fmt: skip


def shared_message(tools: Tools, job: Job) -> tuple[str, int] | None:
    """Return what may be shown of the commonest message of a job's open letters, and how many share it.

    None where fewer than two rows share one, where more than :data:`MOST_ROWS` do, where a request of
    theirs cannot be read, and where too little would be left.
    """
    # What was never sent has no request by which to hide words.
    found = commonest(letter.message for letter in _open_letters(tools.ledger, job) if letter.request_path)
    if found is None:
        return None
    message, number = found
    if not _LEAST_ROWS <= number <= MOST_ROWS:
        return None
    veil = Veil(message)
    try:
        wanted = _requests_by_path(tools, job, message)
        if not _hide_requests(veil, tools, job, wanted):
            return None
    except (BatchLLMError, LookupError, ValueError, OSError, RecursionError):
        return None
    shown = veil.shown()
    return (shown, number) if shown else None


def commonest(messages: Iterable[str]) -> tuple[str, int] | None:
    """Return the message that occurs most often and how often; None where there is none."""
    seen: Counter[str] = Counter()
    for message in messages:
        if message and (message in seen or len(seen) < _COUNTED):
            seen[message] += 1
    return seen.most_common(1)[0] if seen else None


class Veil:
    """A message from which words are hidden, request by request.

    A word is a run of letters and digits. Letters of scripts that put no spaces between words are words
    by themselves. Single ASCII characters and pairs of ASCII letters tell nothing and stay.
    """

    def __init__(self, message: str) -> None:
        readable = "".join(char for char in plain(message[:_READ]) if char.isprintable())
        self._pieces, self._quoted = _without_quotes(readable)
        self._words = [word for piece in self._pieces if (word := _word(piece))]
        self._standing = {word for word in self._words if _can_tell(word)}
        self._hidden: set[str] = set()

    def hide(self, texts: Iterable[str]) -> None:
        """Hide the words that stand in one of the texts, whatever their case and escapes."""
        for text in texts:
            if not self._standing:
                return
            forms = {text.casefold(), plain(text).casefold()}
            found = {word for word in self._standing if any(word in form for form in forms)}
            self._standing -= found
            self._hidden |= found

    def shown(self) -> str:
        """Return what is left, in one line of at most 200 characters; "" where less than half is."""
        left = sum(word not in self._hidden for word in self._words)
        if not left or 2 * left < len(self._words) + self._quoted:
            return ""
        line = "".join(_HIDDEN if _word(piece) in self._hidden else piece for piece in self._pieces)
        # How much was hidden is nobody's business either.
        return _HIDDEN_RUN.sub(_HIDDEN, line)[:_SHOWN].rstrip()


def request_texts(value: Any) -> Iterator[str]:
    """Yield every text of a request's body, and its numbers of four digits or more."""
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            yield leaf
        elif isinstance(leaf, (int, float)) and abs(leaf) >= 1000:
            yield str(leaf)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def plain(text: str) -> str:
    """Return a text with its escapes undone (JSON, Python, HTML, addresses), in one form of Unicode.

    What cannot be seen is dropped, white space becomes single spaces.
    """
    for _ in range(_DEPTH):
        before, text = text, _unescaped(text)
        if text == before:
            break
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _UNSEEN.sub("", " ".join(text.split()))


def _unescaped(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(_escaped_char, text)
        # A character beyond U+FFFF is written as two in JSON.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if "&" in text:
        text = html.unescape(text)
    if "%" in text:
        text = unquote(text)
    return text


def _escaped_char(match: re.Match[str]) -> str:
    number = match[1] or match[2] or match[3]
    if number:
        code = int(number, 16)
        return chr(code) if code <= 0x10FFFF else " "
    return " " if match[4] else match[5]


def _without_quotes(text: str) -> tuple[list[str], int]:
    """Return the text in pieces (words, and what is between), quoted pieces hidden, and their number."""
    pieces: list[str] = []
    quoted = at = 0
    while at < len(text):
        end = _quote_end(text, at)
        if end:
            pieces.append(_HIDDEN)
            quoted += 1
        else:
            end = _piece_end(text, at)
            pieces.append(text[at:end])
        at = end
    return pieces, quoted


def _quote_end(text: str, start: int) -> int:
    """Return where the quoted piece that begins at ``start`` ends; 0 where none begins there.

    One that is never closed was cut off and goes on to the end. Within words it is an apostrophe.
    """
    closing = _QUOTES.get(text[start])
    if closing is None or (text[start] in "'’" and start and _in_word(text[start - 1])):
        return 0
    for at in range(start + 1, len(text)):
        if text[at] in closing and not (at + 1 < len(text) and _in_word(text[at + 1])):
            return at + 1
    return len(text)


def _piece_end(text: str, start: int) -> int:
    at = start + 1
    if not _in_word(text[start]):
        return at
    alone = _alone(text[start])
    while at < len(text) and _in_word(text[at]):
        if _kind(text[at]) != "M" and (alone or _alone(text[at])):
            break
        at += 1
    return at


def _word(piece: str) -> str:
    """Return the piece as words are compared, "" where it is no word."""
    return piece.casefold() if _in_word(piece[0]) else ""


def _can_tell(word: str) -> bool:
    """Say whether a word is long enough to tell something about who is asked for."""
    if not word.isascii():
        return True
    return len(word) > 2 or (len(word) == 2 and not word.isalpha())


def _kind(char: str) -> str:
    return unicodedata.category(char)[0]


def _in_word(char: str) -> bool:
    return _kind(char) in "LNM"


def _alone(char: str) -> bool:
    """Say whether a letter may be a word by itself (Han, kana, Thai …: no spaces between words)."""
    return unicodedata.category(char) == "Lo"


# -- the job's letters and requests --------------------------------------------------------------------


def _open_letters(ledger: Ledger, job: Job) -> Iterator[DeadLetter]:
    return ledger.dead_letters(job.job_id, states=[LetterState.OPEN])


def _requests_by_path(tools: Tools, job: Job, message: str) -> dict[str, set[str]]:
    """Return the wire ids of the requests that brought the message, by the file they are in."""
    wanted: dict[str, set[str]] = {}
    with tools.new_index() as index:
        shared = SharedRequests(index)
        if job.plan_id is not None:
            shared.add(tools.workspace, tools.root, job.plan_id)
        for letter in _open_letters(tools.ledger, job):
            if letter.message == message:
                wanted.setdefault(letter.request_path, set()).add(shared.of(letter.wire_id))
    return wanted


def _hide_requests(veil: Veil, tools: Tools, job: Job, wanted: Mapping[str, set[str]]) -> bool:
    """Hide what the rows' requests hold, one request in memory at a time. False where one is missing."""
    missing = {path: set(wires) for path, wires in wanted.items()}
    # A parameter may hold a prompt, too; its numbers are the DAG author's and help to mend the cause.
    veil.hide(leaf for leaf in _leaves(tools.template(job).params) if isinstance(leaf, str))
    for batch in tools.ledger.batches(job.job_id):
        wires = missing.get(batch.path)
        if not wires:
            continue
        for request in iter_requests(tools.workspace, tools.root, batch):
            if request.wire_id in wires:
                wires.discard(request.wire_id)
                veil.hide(request_texts(msgspec.json.decode(request.body)))
    return not any(missing.values())
