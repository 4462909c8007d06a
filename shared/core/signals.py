"""A signal: one thing said to a thread, by a user, a tool, a webhook or the system.

Not the message that the model gets (`render` makes that), and not what is sent in
(`signal_input` reads that). Times are epoch milliseconds inside, ISO texts on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from shared.core.model import FilePart, TextPart, UserMessage, UserPart
from shared.core.xml import Scalar, element

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.core.events import Chunk

SignalType = Literal["user", "state", "reactive", "notification"]

DEFAULT_TAGS: dict[SignalType, str] = {
    "user": "user",
    "state": "state",
    "reactive": "system-reminder",
    "notification": "notification",
}
LEGACY_TYPES: dict[str, SignalType] = {"user-message": "user", "system-reminder": "reactive"}

Contents = str | tuple[UserPart, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999, the end of what `iso` can write."""


def iso(at: int) -> str:
    """Give epoch milliseconds as clients read times: `2026-11-30T15:43:41.913Z`."""
    moment = _EPOCH + timedelta(milliseconds=at)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def millis(text: str) -> int | None:
    """Read an ISO date or time, UTC if it names no zone; None if it is none, or before 1970."""
    try:
        moment = datetime.fromisoformat(text)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    at = (moment - _EPOCH) // timedelta(milliseconds=1)
    return at if at >= 0 else None


def normal_type(text: str) -> SignalType | None:
    """Give the type that a name stands for, legacy names included (`docs/spec/signals.md` 1.5)."""
    if text in LEGACY_TYPES:
        return LEGACY_TYPES[text]
    return text if text in DEFAULT_TAGS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A normalised signal (`docs/spec/signals.md` 1.2)."""

    id: str
    type: SignalType
    tag_name: str
    contents: Contents
    attributes: dict[str, Scalar] = field(default_factory=dict)
    """In the order in which they are written; nulls are dropped."""
    metadata: dict[str, Any] | None = None
    """Never shown to the model."""
    provider_options: dict[str, Any] | None = None
    created_at: int
    accepted_at: int | None = None
    transient: bool = False
    """Shown to the model once, never stored in the transcript."""

    def to_record(self) -> dict[str, Any]:
        """Give the JSON in which it is stored; `from_record` is the exact inverse."""
        contents = self.contents
        record = {
            "id": self.id,
            "type": self.type,
            "tag_name": self.tag_name,
            "contents": contents if isinstance(contents, str) else [_stored(p) for p in contents],
            "attributes": self.attributes or None,
            "metadata": self.metadata,
            "provider_options": self.provider_options,
            "created_at": self.created_at,
            "accepted_at": self.accepted_at,
            "transient": self.transient or None,
        }
        return _given(record)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Signal:
        """Read what `to_record` gave."""
        contents = record["contents"]
        if not isinstance(contents, str):
            contents = tuple(_restored(part) for part in contents)
        return cls(**{**record, "contents": contents})

    def wire(self) -> dict[str, Any]:
        """Give the signal as answers show it (`docs/spec/signals.md` 1.2)."""
        return {**_data(self), "__isCreatedSignal": True}


def parts_of(contents: Contents) -> tuple[UserPart, ...]:
    """Give contents as parts; an empty text has none."""
    if isinstance(contents, str):
        return (TextPart(contents),) if contents else ()
    return contents


def simplest(parts: Sequence[UserPart]) -> Contents:
    """Give parts as contents; one plain text part is a string (`docs/spec/signals.md` 1.3.4)."""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and parts[0].provider_options is None:
        return parts[0].text
    return tuple(parts)


def render(signal: Signal) -> UserMessage:
    """Give the message that the model gets (`docs/spec/signals.md` 1.7).

    An empty user signal without attributes gives empty content: leave it out (1.2.7).
    """
    contents = simplest(parts_of(signal.contents)) or ""
    if signal.type != "user" or signal.attributes:
        contents = _wrapped(signal, parts_of(contents))
    return UserMessage(contents, signal.provider_options)


def _wrapped(signal: Signal, parts: tuple[UserPart, ...]) -> Contents:
    tag, attributes = signal.tag_name, signal.attributes
    texts = [part for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts) and all(part.provider_options is None for part in texts):
        return element(tag, attributes, "\n".join(part.text for part in texts))
    if not texts:
        return (TextPart(element(tag, attributes)), *parts)
    first = parts.index(texts[0])
    opened = replace(texts[0], text=element(tag, attributes, texts[0].text))
    return (*parts[:first], opened, *parts[first + 1 :])


def echo(signal: Signal) -> Chunk:
    """Give the chunk that shows the signal, but for its `runId` (`docs/spec/signals.md` 1.8)."""
    kind = "data-user-message" if signal.type == "user" else "data-signal"
    return {"type": kind, "data": _data(signal), "transient": True}


def with_attributes(signal: Signal, more: Mapping[str, Scalar | None]) -> Signal:
    """Merge a delivery branch's attributes over the signal's (`docs/spec/signals.md` 2.3).

    A name in both keeps its place and gets the new value, new names follow (1.6.8); a null takes
    the attribute away (1.6.4).
    """
    merged = {**signal.attributes, **more}
    kept = {name: value for name, value in merged.items() if value is not None}
    return replace(signal, attributes=kept)


def wire_contents(contents: Contents) -> str | list[dict[str, Any]]:
    """Give contents as clients see them (`docs/spec/signals.md` 1.3)."""
    plain = contents if isinstance(contents, str) else simplest(contents)
    return plain if isinstance(plain, str) else [_wire_part(part) for part in plain]


def _data(signal: Signal) -> dict[str, Any]:
    data = {
        "id": signal.id,
        "type": signal.type,
        "tagName": signal.tag_name,
        "contents": wire_contents(signal.contents),
        "createdAt": iso(signal.created_at),
        "acceptedAt": None if signal.accepted_at is None else iso(signal.accepted_at),
        "attributes": signal.attributes or None,
        "metadata": signal.metadata,
        "providerOptions": signal.provider_options,
        "transient": signal.transient or None,
    }
    return _given(data)


def _wire_part(part: UserPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        body: dict[str, Any] = {"type": "text", "text": part.text}
    else:
        body = {"type": "file", "data": part.data, "mediaType": part.media_type}
        body["filename"] = part.filename
    return _given({**body, "providerOptions": part.provider_options})


def _stored(part: UserPart) -> dict[str, Any]:
    body: dict[str, Any] = (
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {
            "type": "file",
            "data": part.data,
            "media_type": part.media_type,
            "filename": part.filename,
        }
    )
    return _given({**body, "provider_options": part.provider_options})


def _restored(body: Mapping[str, Any]) -> UserPart:
    fields = {key: value for key, value in body.items() if key != "type"}
    return TextPart(**fields) if body["type"] == "text" else FilePart(**fields)


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}
