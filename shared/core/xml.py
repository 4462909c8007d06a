"""The XML that a model sees around signals: names and escaping (`docs/spec/signals.md` 1.6).

It is text for a model, not a document: control characters stay as they are, and nothing parses it.
What counts is that no text and no value can close its tag or add an attribute.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from shared.core.errors import BadRequest
from shared.core.limits import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar = str | int | float | bool
"""What an attribute can hold."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_EXACT = 2**53
_PLAIN_ABOVE = -6
_PLAIN_UP_TO = 21


def is_name(text: str) -> bool:
    """Tell whether a text can name a tag or an attribute (`docs/spec/signals.md` 1.6.1)."""
    return _NAME.fullmatch(text) is not None


def check_tag_name(name: str, field: str | None = None) -> str:
    """Return the name if it can name a tag (`docs/spec/signals.md` 1.6.2).

    Raises:
        BadRequest: it cannot; the text is the reference's.
    """
    if not is_name(name):
        raise BadRequest(f"Invalid signal XML tag name: {shown(name)}", field)
    return name


def check_attribute_name(name: str, field: str | None = None) -> str:
    """Return the name if it can name an attribute (`docs/spec/signals.md` 1.6.2).

    Raises:
        BadRequest: it cannot; the text is the reference's.
    """
    if not is_name(name):
        raise BadRequest(f"Invalid signal XML attribute name: {shown(name)}", field)
    return name


def escape_text(text: str) -> str:
    """Escape the text of an element; quotes stay (`docs/spec/signals.md` 1.6.6)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_attribute(text: str) -> str:
    """Escape the value of an attribute; apostrophes stay (`docs/spec/signals.md` 1.6.7)."""
    return escape_text(text).replace('"', "&quot;")


def number_text(value: float) -> str:
    """Give a finite number as JavaScript prints it: `1.5`, `3` for 3.0, `1e+21`."""
    if isinstance(value, int) and abs(value) <= _EXACT:
        return str(value)
    number = float(value)
    if number == 0:
        return "0"
    sign, figures, exponent = Decimal(repr(number)).as_tuple()
    digits = "".join(str(figure) for figure in figures)
    point = len(digits) + int(exponent)
    digits = digits.rstrip("0")
    return ("-" if sign else "") + _place(digits, point)


def _place(digits: str, point: int) -> str:
    """Write 0.digits x 10^point by the rules of ECMAScript's Number::toString."""
    if 0 < point <= _PLAIN_UP_TO:
        whole = digits[:point].ljust(point, "0")
        return f"{whole}.{digits[point:]}" if len(digits) > point else whole
    if _PLAIN_ABOVE < point <= 0:
        return "0." + "0" * -point + digits
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"


def value_text(value: Scalar) -> str:
    """Give the string form of an attribute's value (`docs/spec/signals.md` 1.6.5)."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value)


def element(tag: str, attributes: Mapping[str, Scalar], text: str = "") -> str:
    """Write one element; without text it is `<tag />` (`docs/spec/signals.md` 1.6.8, 1.7).

    Names are taken as they are: they were checked when the signal was accepted.
    """
    head = tag + "".join(
        f' {name}="{escape_attribute(value_text(value))}"' for name, value in attributes.items()
    )
    return f"<{head}>{escape_text(text)}</{tag}>" if text else f"<{head} />"
