"""Images of a row: by address, from a column, from a file."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from airflow_batch_llm import Image, RowPrompt
from airflow_batch_llm.core.endpoints import COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.exceptions import FileUnavailable, PromptError
from airflow_batch_llm.prompts import UnrenderableRow

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
KINDS = {
    "png": PNG,
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(20),
    "gif": b"GIF89a" + bytes(20),
    "webp": b"RIFF\x01\x02\x03\x04WEBPVP8 " + bytes(20),
}


@pytest.fixture
def bucket() -> MemoryFileSystem:
    """A storage that Airflow reaches by ``memory://``."""
    store = MemoryFileSystem()
    attach(protocol="memory", fs=store)
    return store


def _urls(image: str | Image, row: dict[str, Any], context: dict[str, Any] | None = None) -> list[str]:
    body = RowPrompt("what?", images=[image]).resolve(context or {}).body(row, "row 'r'")
    text, *parts = body["messages"][-1]["content"]
    assert text == {"type": "text", "text": "what?"}
    assert all(part["type"] == "image_url" for part in parts)
    return [part["image_url"]["url"] for part in parts]


def _fault(image: str | Image, row: dict[str, Any]) -> str:
    with pytest.raises(UnrenderableRow, match=r"row 'r': ") as caught:
        _urls(image, row)
    assert "secret" not in str(caught.value)
    return caught.value.fault


def _data_url(kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(KINDS[kind]).decode()}"


def test_an_address_goes_along_as_it_is() -> None:
    address = "https://h/{{ x }}?a=1&b=%20"

    assert _urls("{{ row.url }}", {"url": address}) == [address]
    assert _urls(Image(url="https://h/{{ row.n }}.png"), {"n": 1}) == ["https://h/1.png"]
    assert _urls("{{ row.url }}", {"url": _data_url("png")}) == [_data_url("png")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda data: base64.b64encode(data).decode()])
def test_a_column_is_sent_with_the_kind_that_its_bytes_say(kind: str, form: Any) -> None:
    assert _urls(Image(column="picture"), {"picture": form(KINDS[kind])}) == [_data_url(kind)]


def test_a_column_may_hold_several() -> None:
    row = {"pictures": [KINDS["png"], None, KINDS["gif"]]}

    assert _urls(Image(column="pictures"), row) == [_data_url("png"), _data_url("gif")]


def test_a_file_is_read_beside_the_dag_or_from_a_storage(tmp_path: Path, bucket: MemoryFileSystem) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(KINDS["jpeg"])
    beside = {"dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"))}
    bucket.pipe("/photos/b", KINDS["webp"])

    assert _urls(Image(path="photos/{{ row.name }}.jpg"), {"name": "a"}, beside) == [_data_url("jpeg")]
    assert _urls(Image(path=f"{tmp_path}/photos/{{{{ row.name }}}}"), {"name": "a.jpg"}) == [
        _data_url("jpeg")
    ]
    assert _urls(Image(path="memory://photos/{{ row.name }}"), {"name": "b"}) == [_data_url("webp")]
    whole = Image(path="{{ row.at }}", within=str(tmp_path))
    assert _urls(whole, {"at": f"{tmp_path}/photos/a.jpg"}) == [_data_url("jpeg")]


@pytest.mark.parametrize("name", ["../secret.png", "a/../../secret.png", "x::file:///secret"])
def test_a_row_cannot_name_a_file_outside_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "photos").mkdir()

    assert _fault(Image(path=f"{tmp_path}/photos/{{{{ row.name }}}}"), {"name": name}) == "image_outside"
    inside = Image(path="{{ row.name }}", within=str(tmp_path / "photos"))
    assert _fault(inside, {"name": str(tmp_path / "secret.png")}) == "image_outside"
    assert _fault(inside, {"name": str(tmp_path / "photos-secret.png")}) == "image_outside"


def test_what_is_wrong_with_a_rows_image_is_told_by_a_code(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"secret, no image")
    (tmp_path / "large.png").write_bytes(PNG)
    (tmp_path / "folder").mkdir()
    here = Image(path=f"{tmp_path}/{{{{ row.name }}}}", max_bytes=len(PNG) - 1)

    codes = {
        name: _fault(here, {"name": name})
        for name in ("none.png", "folder", "text.png", "large.png", "\0secret", "s" * 500, "text.png/secret")
    }

    assert codes == {
        "none.png": "image_missing",
        "folder": "image_missing",
        "text.png": "image_kind",
        "large.png": "image_too_large",
        "\0secret": "image_unreadable",
        "s" * 500: "image_unreadable",
        "text.png/secret": "image_unreadable",
    }
    assert _fault("{{ row.url }}", {"url": "ftp://secret"}) == "image_url"
    assert _fault("{{ row.url }}", {"url": None}) == "image_missing"
    assert _fault(Image(column="c"), {"c": 5}) == "image_shape"
    assert _fault(Image(column="c"), {"c": "secret!"}) == "image_shape"
    assert _fault(Image(column="c"), {"c": []}) == "image_missing"
    assert _fault(Image(column="c", max_bytes=5), {"c": PNG}) == "image_too_large"


@pytest.mark.parametrize("image", [Image(url="{{ row.a }}", optional=True), Image(column="a", optional=True)])
def test_an_optional_image_may_be_left_out(image: Image) -> None:
    assert _urls(image, {"a": None}) == []


class Broken(MemoryFileSystem):
    """A storage whose reads fail."""

    error: type[OSError] = OSError

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        raise self.error(f"reading {path}")


def _body_of_broken(error: type[OSError]) -> dict[str, Any]:
    store = Broken()
    store.error = error
    attach(protocol="memory", conn_id="broken", fs=store)
    image = Image(path="memory://bucket/{{ row.name }}", conn_id="broken")
    return RowPrompt("a", images=[image]).resolve({}).body({"name": "secret"}, "row 'r'")


def test_a_storage_that_fails_is_tried_again_and_tells_no_path() -> None:
    with pytest.raises(FileUnavailable) as caught:
        _body_of_broken(ConnectionResetError)

    assert str(caught.value) == (
        "[BLLM-019] row 'r': an image cannot be read: the storage failed with ConnectionResetError"
    )
    assert not caught.value.deterministic


def test_an_image_that_may_not_be_read_is_the_rows_fault() -> None:
    with pytest.raises(UnrenderableRow, match="row 'r': the image file may not be read"):
        _body_of_broken(PermissionError)


def test_a_storage_that_airflow_does_not_know_is_the_prompts_fault() -> None:
    prompt = RowPrompt("a", images=[Image(path="nowhere://bucket/{{ row.name }}")])

    with pytest.raises(
        PromptError, match="image 0 of the prompt is in nowhere://bucket, and Airflow knows no"
    ):
        prompt.resolve({})


def test_a_column_that_is_not_there_is_the_prompts_fault() -> None:
    with pytest.raises(PromptError, match="row 'r': an image is in column 'b', which the row does not have"):
        _urls(Image(column="b"), {"a": PNG})


def test_images_go_to_the_last_message_that_the_author_wrote() -> None:
    prompt = RowPrompt(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "{{ row.a }}"}]},
        ],
        images=["https://h/{{ row.a }}", Image(url="https://h/2", detail="low")],
    ).resolve({}, RESPONSES)

    first, last = prompt.body({"a": "x"})["messages"]
    again = prompt.body({"a": "y"})["messages"][-1]["content"]

    assert first == {"role": "system", "content": "s"}
    assert last["content"] == [
        {"type": "text", "text": "x"},
        {"type": "image_url", "image_url": {"url": "https://h/x"}},
        {"type": "image_url", "image_url": {"url": "https://h/2", "detail": "low"}},
    ]
    assert len(again) == 3, "one row leaves nothing behind for the next"


def test_images_alone_are_a_prompt() -> None:
    body = RowPrompt(images=["https://h/1"]).resolve({}).body({})

    assert body["messages"] == [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/1"}}]}
    ]


def test_a_moderation_looks_at_images_too_and_other_endpoints_do_not() -> None:
    prompt = RowPrompt("{{ row.a }}", images=["https://h/1"])

    assert prompt.resolve({}, MODERATIONS).body({"a": "x"}) == {
        "input": [
            {"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "https://h/1"}},
        ]
    }
    for endpoint in (COMPLETIONS, EMBEDDINGS):
        with pytest.raises(PromptError, match="the prompt has images"):
            prompt.resolve({}, endpoint)
    with pytest.raises(PromptError, match="image 0 of the prompt has a detail"):
        RowPrompt("a", images=[Image(url="https://h/1", detail="low")]).resolve({}, MODERATIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of url, column and path"),
        ({"url": "a", "column": "b"}, "exactly one of"),
        ({"url": ""}, "non-empty string"),
        ({"column": 5}, "non-empty string"),
        ({"path": "{{ row.a }}"}, "must begin with the folder"),
        ({"path": "s3://{{ row.a }}"}, "must begin with the folder"),
        ({"path": "img-{{ row.a }}.png"}, "must begin with the folder"),
        ({"column": "a", "within": "b"}, "belong to path"),
        ({"url": "a", "max_bytes": 0}, "max_bytes"),
        ({"url": "a", "detail": "extreme"}, "detail"),
    ],
)
def test_an_image_that_makes_no_sense_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        Image(**arguments)


@pytest.mark.parametrize("images", ["https://h/1", [5], 5])
def test_images_are_a_list_of_templates_and_images(images: Any) -> None:
    with pytest.raises(PromptError, match="image"):
        RowPrompt("a", images=images)
