"""Images, documents and cache marks in Anthropic's content blocks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from airflow_batch_llm.server.translation import BadRequest, data_url, file_part, image_part, text_part

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_LIFETIMES = ("5m", "1h")
#: Most blocks of a request that may be marked.
_MOST_MARKS = 4


def image(place: str, block: dict[str, Any]) -> dict[str, Any]:
    """Return an image as a part of a message. An address is handed on: nothing is fetched here.

    :raises BadRequest: its source is wrong, or a file of the Files API (there are none here).
    """
    source = _source(place, block)
    if source["type"] == "url":
        return image_part(_address(place, source))
    if source["type"] != "base64":
        raise _bad(f"{place}.source", "no such file")
    if source.get("media_type") not in _IMAGES:
        raise _bad(f"{place}.source.media_type", f"Input should be one of {', '.join(_IMAGES)}")
    return image_part(data_url(source["media_type"], _base64(place, source)))


def document_parts(place: str, block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a document as parts of a message: its title and context, then its text, pages or file.

    :raises BadRequest: its source is wrong, or a file of the Files API (there are none here).
    """
    source = _source(place, block)
    title, context = block.get("title"), block.get("context")
    before = [text_part(text) for text in (title, context) if isinstance(text, str) and text]
    kind = source["type"]
    if kind == "text":
        if not isinstance(source.get("data"), str) or not source["data"]:
            raise _bad(f"{place}.source.data", "Field required")
        return [*before, text_part(source["data"])]
    if kind == "content":
        return before + _contents(f"{place}.source.content", source.get("content"))
    name = title if isinstance(title, str) else ""
    if kind == "url":
        return [*before, file_part(_address(place, source), name)]
    if kind != "base64":
        raise _bad(f"{place}.source", "no such file")
    if source.get("media_type") != "application/pdf":
        raise _bad(f"{place}.source.media_type", "Input should be 'application/pdf'")
    return [*before, file_part(data_url("application/pdf", _base64(place, source)), name)]


def _contents(place: str, content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [text_part(content)]
    found: list[dict[str, Any]] = []
    for index, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "image":
            found.append(image(f"{place}.{index}", block))
        elif kind == "text" and isinstance(block.get("text"), str):
            found.append(text_part(block["text"]))
        else:
            raise _bad(f"{place}.{index}", "Input should be a text or an image block")
    if not found:
        raise _bad(place, "Field required")
    return found


def _source(place: str, block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "text", "content", "file"):
        raise _bad(f"{place}.source", "Field required")
    return source


def _address(place: str, source: dict[str, Any]) -> str:
    url = source.get("url")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise _bad(f"{place}.source.url", "Only HTTP(S) URLs are supported")
    return url


def _base64(place: str, source: dict[str, Any]) -> str:
    data = source.get("data")
    try:
        if not isinstance(data, str) or not base64.b64decode(data, validate=True):
            raise ValueError
    except ValueError as e:
        raise _bad(f"{place}.source.data", "Input should be base64") from e
    return data


def _bad(param: str, message: str) -> BadRequest:
    return BadRequest(f"{param}: {message}", param=param)


# -- cache marks -----------------------------------------------------------------------------------
def blocks_of(params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield what a prompt is made of, in the order in which it is cached: tools, system, messages.

    Each with where it stands (its role, for a message), and how many bytes of text it adds to the prompt.
    What has the wrong form is left out.
    """
    for tool in _dicts(params.get("tools")):
        yield "tools", tool, 0
    for block in _blocks(params.get("system")):
        yield "system", block, _size(block)
    for message in _dicts(params.get("messages")):
        for block in _blocks(message.get("content")):
            yield f"messages/{message.get('role')}", block, _size(block)


def mark_of(value: dict[str, Any]) -> str | None:
    """Return the lifetime that a block, or a whole request, is marked to be cached for; None: it is not."""
    mark = value.get("cache_control")
    if not isinstance(mark, dict):
        return None
    return "1h" if mark.get("ttl") == "1h" else "5m"


def check_cache_control(params: dict[str, Any]) -> None:
    """:raises BadRequest: a mark has the wrong form, or there are too many."""
    marked = [block for _, block, _ in blocks_of(params) if block.get("cache_control") is not None]
    if params.get("cache_control") is not None:
        marked.append(params)
    for block in marked:
        mark = block["cache_control"]
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            raise _bad("cache_control.type", "Input should be 'ephemeral'")
        if mark.get("ttl", "5m") not in _LIFETIMES:
            raise _bad("cache_control.ttl", f"Input should be one of {', '.join(_LIFETIMES)}")
    if len(marked) > _MOST_MARKS:
        raise _bad("cache_control", f"at most {_MOST_MARKS} blocks may be marked, {len(marked)} are")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else _dicts(content)


def _size(block: dict[str, Any]) -> int:
    text = block.get("text")
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
