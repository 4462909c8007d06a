"""Signals as message rows, as clients list and stores hold them (`docs/spec/signals.md` 1.9).

A row keeps the raw text; the XML is made when a prompt is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.core.errors import BadRequest
from shared.core.limits import check_id, check_object, check_text
from shared.core.model import FilePart, TextPart, UserPart
from shared.core.signal_input import parse_attributes
from shared.core.signals import (
    DEFAULT_TAGS,
    LAST_TIME,
    Contents,
    Signal,
    SignalType,
    iso,
    millis,
    normal_type,
    parts_of,
    simplest,
    with_attributes,
)
from shared.core.xml import is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_IMAGE = "image/png"


def row(signal: Signal, thread: str, resource: str | None, created_at: int) -> dict[str, Any]:
    """Give the message row of a signal that entered the transcript at `created_at` (1.9)."""
    parts = [_row_part(part) for part in parts_of(signal.contents) or (TextPart(""),)]
    content: dict[str, Any] = {"format": 2, "parts": parts}
    if signal.provider_options is not None:
        content["providerMetadata"] = signal.provider_options
    content["metadata"] = {"signal": _about(signal, created_at)}
    return {
        "id": signal.id,
        "role": "signal",
        "type": signal.tag_name,
        "createdAt": iso(created_at),
        "threadId": thread,
        "resourceId": resource,
        "content": content,
    }


def signal_of_row(row: Mapping[str, Any]) -> Signal | None:
    """Read a stored row back, legacy forms included; None if nothing can be made of it (1.9.4-5).

    A row whose names would break the XML is skipped, so that it cannot spoil every later prompt
    (`docs/spec/signals.md` 9.2.1).
    """
    try:
        return _decoded(row)
    except (BadRequest, RecursionError):
        return None


def _row_part(part: UserPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        body: dict[str, Any] = {"type": "text", "text": part.text}
    else:
        body = {"type": "file", "data": part.data, "mimeType": part.media_type}
        if part.filename is not None:
            body["filename"] = part.filename
    if part.provider_options is not None:
        body["providerMetadata"] = part.provider_options
    return body


def _about(signal: Signal, created_at: int) -> dict[str, Any]:
    about = {
        "id": signal.id,
        "type": signal.type,
        "tagName": signal.tag_name,
        "createdAt": iso(created_at),
        "acceptedAt": None if signal.accepted_at is None else iso(signal.accepted_at),
        "attributes": signal.attributes or None,
        "metadata": signal.metadata,
        "transient": signal.transient or None,
    }
    return {key: value for key, value in about.items() if value is not None}


# ---- reading ---------------------------------------------------------------------------------


def _decoded(row: Mapping[str, Any]) -> Signal | None:
    content = _object(row.get("content"))
    about = _object(_object(content.get("metadata")).get("signal"))
    kind = _kind(about.get("type"), row.get("type"))
    contents = _contents_of(about.get("contents"), row.get("content"))
    if kind is None or contents is None:
        return None
    tag = about.get("tagName") or DEFAULT_TAGS[kind]
    if not isinstance(tag, str) or not is_name(tag):
        return None
    bare = Signal(
        id=check_id(about.get("id") or row.get("id"), "id"),
        type=kind,
        tag_name=tag,
        contents=contents,
        metadata=_plain(about.get("metadata"), "metadata"),
        provider_options=_plain(content.get("providerMetadata"), "providerMetadata"),
        created_at=_time(about.get("createdAt")) or _time(row.get("createdAt")) or 0,
        accepted_at=_time(about.get("acceptedAt")),
        transient=about.get("transient") is True,
    )
    return with_attributes(bare, parse_attributes(_object(about.get("attributes")), "attributes"))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(value: object, field: str) -> dict[str, Any] | None:
    return check_object(value, field) if isinstance(value, dict) else None


def _kind(*names: object) -> SignalType | None:
    name = next((name for name in names if name is not None), "user-message")
    return normal_type(name) if isinstance(name, str) else None


def _time(value: object) -> int | None:
    if isinstance(value, str):
        return millis(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LAST_TIME else None


def _contents_of(legacy: object, content: object) -> Contents | None:
    """Prefer the legacy contents; fall back to the row's parts, then to a row of plain text."""
    parts = None if legacy is None else _legacy(legacy)
    if parts is None:
        stored = content.get("parts") if isinstance(content, dict) else content
        parts = _known(stored) if isinstance(stored, list) else _legacy(stored)
    return None if parts is None else simplest(parts) or ""


def _known(stored: list[Any]) -> list[UserPart] | None:
    """Read the parts that a signal can have, and pass over the others (`step-start` and such)."""
    parts = [part for part in map(_part, stored) if part is not None]
    return parts if parts or not stored else None


def _legacy(value: object) -> list[UserPart] | None:
    """Read a string, a part, `{role: "user", content}`, or an array of those."""
    if isinstance(value, list):
        found: list[UserPart] = []
        for inner in value:
            parts = None if isinstance(inner, list) else _legacy(inner)
            if parts is None:
                return None
            found += parts
        return found
    if isinstance(value, str):
        return [TextPart(check_text(value, "contents"))]
    if isinstance(value, dict) and value.get("role") == "user":
        inner = value.get("content")
        return _legacy(inner) if isinstance(inner, str | list) else None
    part = _part(value)
    return None if part is None else [part]


def _part(value: object) -> UserPart | None:
    if not isinstance(value, dict):
        return None
    read = _READERS.get(str(value.get("type")))
    options = value.get("providerOptions", value.get("providerMetadata"))
    return read(value, _plain(options, "providerOptions")) if read else None


def _text_part(value: dict[str, Any], options: dict[str, Any] | None) -> UserPart | None:
    text = value.get("text")
    return TextPart(check_text(text, "text"), options) if isinstance(text, str) else None


def _file_part(value: dict[str, Any], options: dict[str, Any] | None) -> UserPart | None:
    data = value.get("data", value.get("image"))
    default = DEFAULT_IMAGE if value.get("type") == "image" else None
    media = value.get("mimeType") or value.get("mediaType") or default
    name = value.get("filename")
    if not isinstance(data, str) or not isinstance(media, str):
        return None
    check_text(data, "data")
    check_text(media, "mimeType")
    return FilePart(data, media, check_text(name, "filename") if name else None, options)


_READERS: dict[str, Callable[[dict[str, Any], dict[str, Any] | None], UserPart | None]] = {
    "text": _text_part,
    "file": _file_part,
    "image": _file_part,
}
