"""Signals and messages as callers send them (`docs/spec/signals.md` 1.2-1.5, 8.7).

Everything is checked here, when it is accepted, so that nothing can fail later, when a prompt is
made (`docs/protocols.md` A1, `docs/spec/signals.md` 9.2). Each error is a `BadRequest` with the
path to the field and a text that says what to change. Unknown keys are dropped; a null counts as
absent.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from shared.core.errors import BadRequest
from shared.core.limits import (
    MAX_ATTRIBUTES,
    check_id,
    check_object,
    check_size,
    check_text,
    is_finite,
    shown,
)
from shared.core.model import FilePart, TextPart, UserPart
from shared.core.signals import (
    DEFAULT_TAGS,
    LEGACY_TYPES,
    Contents,
    Signal,
    SignalType,
    millis,
    normal_type,
    with_attributes,
)
from shared.core.xml import Scalar, check_attribute_name, check_tag_name

_TYPES = ", ".join((*DEFAULT_TAGS, *LEGACY_TYPES))


def parse_signal(body: object, *, id: str, now: int) -> Signal:
    """Read the `signal` of a request (`docs/spec/signals.md` 8.7); `id` is used if it brings none.

    Raises:
        BadRequest: something in it cannot be accepted.
        TooLarge: its record is over `limits.MAX_BODY`.
    """
    if not isinstance(body, dict):
        raise BadRequest("signal must be an object with `type` and `contents`", "signal")
    kind = _type(body.get("type"))
    transient = _transient(body.get("transient"), kind)
    given_id, created, tag = body.get("id"), body.get("createdAt"), body.get("tagName")
    signal = Signal(
        id=id if given_id is None else check_id(given_id, "signal.id"),
        type=kind,
        tag_name=DEFAULT_TAGS[kind] if tag is None else _tag(tag),
        contents=parse_contents(body.get("contents"), "signal.contents"),
        metadata=_optional(body.get("metadata"), "signal.metadata"),
        provider_options=_options(body.get("providerOptions"), "signal.providerOptions"),
        created_at=now if created is None else _created(created),
        accepted_at=now,
        transient=transient,
    )
    return _complete(signal, body, "signal")


def parse_message(body: object, *, id: str, now: int) -> Signal:
    """Read the `message` of a request (`docs/spec/signals.md` 1.4): text, parts or an object.

    Raises:
        BadRequest: something in it cannot be accepted.
        TooLarge: its record is over `limits.MAX_BODY`.
    """
    wrapped = isinstance(body, dict)
    fields: dict[str, Any] = body if isinstance(body, dict) else {"contents": body}
    if not isinstance(fields.get("contents"), str | list):
        raise BadRequest(
            "message must be a string, an array of parts, or an object with `contents`", "message"
        )
    signal = Signal(
        id=id,
        type="user",
        tag_name=DEFAULT_TAGS["user"],
        contents=parse_contents(fields["contents"], "message.contents" if wrapped else "message"),
        metadata=_optional(fields.get("metadata"), "message.metadata"),
        provider_options=_options(fields.get("providerOptions"), "message.providerOptions"),
        created_at=now,
        accepted_at=now,
    )
    return _complete(signal, fields, "message")


def parse_attributes(body: object, field: str) -> dict[str, Scalar | None]:
    """Read attributes, nulls included: `with_attributes` drops them, or what they hide (1.6.4).

    Names of nulls are not checked.

    Raises:
        BadRequest: a name is not XML-safe, a value is no scalar, or there are too many.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest(f"{field} must be an object of names and values", field)
    if sum(value is not None for value in body.values()) > MAX_ATTRIBUTES:
        raise BadRequest(f"{field} must have at most {MAX_ATTRIBUTES} attributes", field)
    for name, value in body.items():
        if value is not None:
            path = f"{field}.{shown(name)}"
            check_attribute_name(name, path)
            _check_scalar(value, path)
    return dict(body)


def parse_contents(body: object, field: str) -> Contents:
    """Read contents: a text or an array of parts; both may be empty (1.2.7, 1.3).

    Raises:
        BadRequest: it is neither, or a part is wrong.
    """
    if isinstance(body, str):
        return check_text(body, field)
    if not isinstance(body, list):
        raise BadRequest(f"{field} must be a string or an array of text and file parts", field)
    return tuple(_part(part, f"{field}.{index}") for index, part in enumerate(body))


def _complete(signal: Signal, body: dict[str, Any], field: str) -> Signal:
    attributes = parse_attributes(body.get("attributes"), f"{field}.attributes")
    signal = with_attributes(signal, attributes)
    check_size(signal.to_record(), field)
    return signal


def _type(value: object) -> SignalType:
    kind = normal_type(value) if isinstance(value, str) else None
    if kind is None:
        name = "undefined" if value is None else shown(value)
        raise BadRequest(f"Invalid signal type: {name}. Use one of {_TYPES}.", "signal.type")
    return kind


def _tag(value: object) -> str:
    if not isinstance(value, str):
        raise BadRequest("signal.tagName must be a string", "signal.tagName")
    return check_tag_name(value, "signal.tagName")


def _transient(value: object, kind: SignalType) -> bool:
    if value is not None and not isinstance(value, bool):
        raise BadRequest("signal.transient must be true or false", "signal.transient")
    if value and kind == "state":
        raise BadRequest("state signals cannot be transient", "signal.transient")
    return bool(value)


def _created(value: object) -> int:
    at = millis(value) if isinstance(value, str) else None
    if at is None:
        raise BadRequest(
            "signal.createdAt must be an ISO 8601 time since 1970, as 2026-11-30T15:43:41.913Z",
            "signal.createdAt",
        )
    return at


def _optional(value: object, field: str) -> dict[str, Any] | None:
    return None if value is None else check_object(value, field)


def _options(value: object, field: str) -> dict[str, Any] | None:
    if value is None:
        return None
    options = check_object(value, field)
    for provider, inner in options.items():
        if not isinstance(inner, dict):
            path = f"{field}.{provider}"
            raise BadRequest(f"{path} must be a JSON object of this provider's options", path)
    return options


def _check_scalar(value: object, field: str) -> None:
    if isinstance(value, str):
        check_text(value, field)
    elif not isinstance(value, int | float):
        raise BadRequest(f"{field} must be a string, a number, a boolean or null", field)
    elif not is_finite(value):
        raise BadRequest(f"{field} must be a finite number", field)


def _part(body: object, field: str) -> UserPart:
    kind = body.get("type") if isinstance(body, dict) else None
    if not isinstance(body, dict) or kind not in ("text", "file"):
        raise BadRequest(f'{field} must be a part with type "text" or "file"', field)
    options = _options(body.get("providerOptions"), f"{field}.providerOptions")
    if kind == "text":
        return TextPart(check_text(body.get("text"), f"{field}.text"), options)
    media = check_text(body.get("mediaType"), f"{field}.mediaType")
    if not media:
        raise BadRequest(
            f"{field}.mediaType must name a media type, such as image/png", f"{field}.mediaType"
        )
    name = body.get("filename")
    return FilePart(
        _data(body.get("data"), f"{field}.data"),
        media,
        None if name is None else check_text(name, f"{field}.filename"),
        options,
    )


def _data(value: object, field: str) -> str:
    """Check that a file can be handed to a model later: an http(s) URL, or base64.

    Raises:
        BadRequest: it is neither.
    """
    data = check_text(value, field)
    if data.startswith(("http://", "https://")):
        return data
    if data.startswith("data:"):
        head, _, encoded = data.partition(",")
        known = head.endswith(";base64")
    else:
        encoded, known = data, True
    try:
        b64decode(encoded, validate=True)
    except ValueError:
        known = False
    if not known:
        raise BadRequest(
            f"{field} must be base64, a data: URL with base64, or an http(s) URL", field
        )
    return data
