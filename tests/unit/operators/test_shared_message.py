"""What is shown of a message that many rows share: the cause, and nothing of what was asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.operators.shared_message import Veil, commonest, request_texts


def shown(message: str, *texts: str) -> str:
    veil = Veil(message)
    veil.hide(texts)
    return veil.shown()


@pytest.mark.parametrize(
    ("message", "texts", "left"),
    [
        # What helps stays.
        ("temperature must be <= 2", ["say 1", "say 2"], "temperature must be <= 2"),
        (
            "The model does not support this parameter.",
            ["Jane Doe"],
            "The model does not support this parameter.",
        ),
        ("Don't send more than 5 images, please", [""], "Don't send more than 5 images, please"),
        # Quoted pieces go, whatever is in them and whatever they are quoted with.
        ("Invalid value: 'Jane Doe'", [], "Invalid value: …"),
        ('Invalid value: "Jane Doe" in field', [], "Invalid value: … in field"),
        ("Invalid value: `Jane Doe`", [], "Invalid value: …"),
        ("Invalid value: «Jane Doe»", [], "Invalid value: …"),
        ("Invalid value: “Jane Doe”", [], "Invalid value: …"),
        ("Invalid value: „Jane Doe“", [], "Invalid value: …"),
        ("Invalid value: 'Jane's friend Doe'", [], "Invalid value: …"),
        ("Invalid value: 'Jane Doe, who was cut o", [], "Invalid value: …"),
        (r"Invalid value: \"Jane Doe\" here", [], "Invalid value: … here"),
        # Words of the request go, in whatever form they come.
        ("Cannot work with patient Jane", ["I am Jane, patient of Dr. Who"], "Cannot work with …"),
        ("Cannot work with JANE now", ["jane"], "Cannot work with … now"),
        ("Cannot work with Jan now", ["Jane"], "Cannot work with … now"),
        (r"Cannot work with J\u00e9r\u00f4me now", ["Jérôme"], "Cannot work with … now"),
        ("Cannot work with Je\u0301ro\u0302me now", ["Jérôme"], "Cannot work with … now"),
        ("Cannot work with J&eacute;r&#244;me now", ["Jérôme"], "Cannot work with … now"),
        ("Cannot work with J%C3%A9r%C3%B4me now", ["Jérôme"], "Cannot work with … now"),
        (r"Cannot work with J\\\\u00e9r\\\\u00f4me now", ["Jérôme"], "Cannot work with … now"),
        ("Cannot work with Jérôme now", [r'{"name": "J\u00e9r\u00f4me"}'], "Cannot work with … now"),
        (r"Cannot work with hello\njane now", ["jane"], "Cannot work with hello … now"),
        ("Cannot work with Ja\u200bne now", ["Jane"], "Cannot work with … now"),
        ("Cannot work with Jane now", ["Ja\u200bne"], "Cannot work with … now"),
        ("Cannot work with Ｊａｎｅ now", ["Jane"], "Cannot work with … now"),
        ("Cannot work with jane_doe@example.org now", ["Jane Doe", "example.org"], "Cannot work with … now"),
        ("Cannot call anybody under +49 30 123 4567", ["+49 30 123 4567"], "Cannot call anybody under +…"),
        ("Bad 田中さん here now today", ["私は田中です"], "Bad …さん here now today"),
        ("Bad राम value here", ["राम"], "Bad … value here"),
        # Too little is left to help anybody.
        ("Jane Doe lives here", ["Jane Doe lives there"], ""),
        ("'Jane' 'Doe' bad", [], ""),
        ("…", [], ""),
        ("", [], ""),
    ],
)
def test_the_cause_is_shown_and_nothing_of_what_was_asked(message: str, texts: list[str], left: str) -> None:
    assert shown(message, *texts) == left


def test_the_words_of_every_row_are_hidden() -> None:
    assert shown("Cannot work with Jane and Joan now", "I am Jane", "I am Joan") == (
        "Cannot work with … and … now"
    )


def test_a_message_is_one_printable_line_of_200_characters() -> None:
    line = shown("first\r\nsecond\x1b[31m third\u2028fourth " + "and so on " * 100)
    assert line.startswith("first second[31m third fourth and so on") and len(line) <= 200
    assert line.isprintable()


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=3, max_size=12), min_size=1))
def test_no_word_of_a_request_is_ever_shown(words: list[str]) -> None:
    request = " ".join(words)
    line = shown(f"This value cannot be used in any request of yours: {request}", request)
    ours = "this value cannot be used in any request of yours"
    left = re.findall(r"[^\W_]+", line.casefold())
    assert all(word in ours.split() or (word.isascii() and len(word) < 3) for word in left)


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], None),
        (["", ""], None),
        (["a", "b", "b", ""], ("b", 2)),
        ([str(n) for n in range(3000)] + ["new", "new", "0"], ("0", 2)),
    ],
)
def test_the_commonest_message_is_counted_in_bounded_memory(
    messages: list[str], found: tuple[str, int] | None
) -> None:
    assert commonest(messages) == found


def test_a_request_is_read_to_its_last_text_and_number() -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "input": [15496, 7, 1.5, True, None, -4711],
    }
    assert list(request_texts(body)) == ["user", "text", "hello", "15496", "-4711"]


def test_a_number_of_the_request_is_hidden() -> None:
    assert shown("Customer no. 15496 cannot be found", *request_texts({"metadata": {"customer": 15496}})) == (
        "Customer no. … cannot be found"
    )
