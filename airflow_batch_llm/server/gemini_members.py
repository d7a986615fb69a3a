"""The messages of Gemini's requests: which members they have, of which types, in either spelling.

The API reads JSON as protocol buffers do: ``camelCase`` and ``snake_case`` alike, whole numbers also as
strings, null as left out, and a name that a message does not have is an error. Here a request is checked
like that, and comes out in ``camelCase``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

#: (value, its place) -> the value as the rest of the server reads it.
Reader = Callable[[Any, str], Any]


class Malformed(Exception):
    """A request that cannot be read. :param place: such as ``request.contents[0].parts``."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


@lru_cache(maxsize=512)
def camel_case(name: str) -> str:
    """Return ``systemInstruction`` for ``system_instruction``."""
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


class Message:
    """Reads a message: every member by its own reader.

    :param members: by name in ``camelCase``; may be filled later, where a message holds itself.
    """

    def __init__(self, members: Mapping[str, Reader]) -> None:
        self.members = dict(members)

    def __call__(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed(place, "This must be an object.")
        found: dict[str, Any] = {}
        for name, given in value.items():
            member = camel_case(name)
            reader = self.members.get(member)
            if reader is None:
                raise Malformed(place, "This has a member that is not known.")
            if given is not None:
                found[member] = reader(given, f"{place}.{member}")
        return found


def many(reader: Reader) -> Reader:
    """Return the reader of a list."""

    def read(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise Malformed(place, "This must be a list.")
        return [reader(one, f"{place}[{index}]") for index, one in enumerate(value)]

    return read


def table(reader: Reader) -> Reader:
    """Return the reader of a map, whose names are the caller's."""

    def read(value: Any, place: str) -> dict[str, Any]:
        return {name: reader(one, f"{place}.*") for name, one in free_object(value, place).items()}

    return read


def one_of(*names: str) -> Reader:
    """Return the reader of an enum."""

    def read(value: Any, place: str) -> str:
        if value not in names:
            raise Malformed(place, "This is none of the values that are known.")
        return str(value)

    return read


def text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise Malformed(place, "This must be a string.")
    return value


def boolean(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(place, "This must be true or false.")
    return value


def integer(value: Any, place: str) -> int:
    number_ = number(value, place)
    if number_ != int(number_):
        raise Malformed(place, "This must be a whole number.")
    return int(number_)


def number(value: Any, place: str) -> float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Malformed(place, "This must be a number.")
    return value


def anything(value: Any, place: str) -> Any:
    return value


def free_object(value: Any, place: str) -> dict[str, Any]:
    """Read an object whose members are the caller's, or nobody's here."""
    if not isinstance(value, dict):
        raise Malformed(place, "This must be an object.")
    return value


def _schema_or_boolean(value: Any, place: str) -> Any:
    return value if isinstance(value, bool) else SCHEMA(value, place)


# -- messages --------------------------------------------------------------------------------------
SCHEMA = Message({})
SCHEMA.members.update(
    {
        "type": text,
        "format": text,
        "title": text,
        "description": text,
        "nullable": boolean,
        "enum": many(text),
        "items": SCHEMA,
        "minItems": integer,
        "maxItems": integer,
        "properties": table(SCHEMA),
        "required": many(text),
        "propertyOrdering": many(text),
        "minProperties": integer,
        "maxProperties": integer,
        "minLength": integer,
        "maxLength": integer,
        "pattern": text,
        "minimum": number,
        "maximum": number,
        "anyOf": many(SCHEMA),
        "additionalProperties": _schema_or_boolean,
        "defs": table(SCHEMA),
        "ref": text,
        "example": anything,
        "default": anything,
    }
)

_PART = Message(
    {
        "text": text,
        "thought": boolean,
        "thoughtSignature": text,
        "inlineData": Message({"mimeType": text, "data": text, "displayName": text}),
        "fileData": Message({"mimeType": text, "fileUri": text, "displayName": text}),
        "functionCall": Message({"id": text, "name": text, "args": free_object}),
        "functionResponse": Message(
            {
                "id": text,
                "name": text,
                "response": free_object,
                "parts": many(free_object),
                "willContinue": boolean,
                "scheduling": text,
            }
        ),
        "executableCode": free_object,
        "codeExecutionResult": free_object,
        "toolCall": free_object,
        "toolResponse": free_object,
        "videoMetadata": free_object,
        "mediaResolution": anything,
        "partMetadata": free_object,
        "mediaProcessing": free_object,
        "audioTranscription": free_object,
        "audioMetadata": free_object,
        "speechMetadata": free_object,
        "documentMetadata": free_object,
        "spreadsheetMetadata": free_object,
    }
)
CONTENT = Message({"role": text, "parts": many(_PART)})

_FUNCTION = Message(
    {
        "name": text,
        "description": text,
        "parameters": SCHEMA,
        "parametersJsonSchema": anything,
        "response": SCHEMA,
        "responseJsonSchema": anything,
        "behavior": text,
    }
)
#: Tools that the API runs itself.
SERVER_TOOLS = (
    "googleSearch",
    "googleSearchRetrieval",
    "googleMaps",
    "codeExecution",
    "urlContext",
    "computerUse",
    "fileSearch",
)
_TOOL = Message(
    {
        "functionDeclarations": many(_FUNCTION),
        "mcpServers": many(free_object),
        **dict.fromkeys(SERVER_TOOLS, free_object),
    }
)
_CALLING = Message(
    {
        "mode": one_of("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"),
        "allowedFunctionNames": many(text),
    }
)
_GENERATION = Message(
    {
        "temperature": number,
        "topP": number,
        "topK": number,
        "seed": integer,
        "candidateCount": integer,
        "maxOutputTokens": integer,
        "stopSequences": many(text),
        "presencePenalty": number,
        "frequencyPenalty": number,
        "responseLogprobs": boolean,
        "logprobs": integer,
        "responseMimeType": text,
        "responseSchema": SCHEMA,
        "responseJsonSchema": anything,
        "responseModalities": many(text),
        "thinkingConfig": Message(
            {"thinkingBudget": integer, "thinkingLevel": text, "includeThoughts": boolean}
        ),
        "mediaResolution": text,
        "speechConfig": free_object,
        "imageConfig": free_object,
        "audioTranscriptionConfig": free_object,
        "enableEnhancedCivicAnswers": boolean,
    }
)
GENERATE = Message(
    {
        "model": text,
        "contents": many(CONTENT),
        "systemInstruction": CONTENT,
        "tools": many(_TOOL),
        "toolConfig": Message(
            {
                "functionCallingConfig": _CALLING,
                "retrievalConfig": free_object,
                "includeServerSideToolInvocations": boolean,
            }
        ),
        "safetySettings": many(free_object),
        "generationConfig": _GENERATION,
        "cachedContent": text,
        "labels": table(text),
        "serviceTier": text,
        "store": boolean,
        "continuationToken": text,
    }
)
EMBED = Message(
    {
        "model": text,
        "content": CONTENT,
        "taskType": text,
        "title": text,
        "outputDimensionality": integer,
    }
)
