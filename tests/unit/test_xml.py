"""Names, values and escaping (docs/spec/signals.md 1.6; invariant 11 of docs/design.md)."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.core import xml
from shared.core.errors import BadRequest

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

XML_CHARS = st.characters(
    codec="utf-8",
    exclude_categories=["Cs"],
    exclude_characters=[chr(code) for code in range(32)] + ["\ufffe", "\uffff"],
)
"""What XML 1.0 can carry, without the white space that a parser would normalise."""
TEXTS = st.text(XML_CHARS)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("name", ["a", "_", "sentFrom", "a-b.c_9", "system-reminder", "xml"])
def test_1_6_1_good_names(name: str) -> None:
    assert xml.is_name(name)
    assert xml.check_tag_name(name) == name
    assert xml.check_attribute_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "1a", "-a", ".a", "a b", "a:b", "é", "a\n", "\na", "a>", 'a="', "a\u0660"]
)
def test_1_6_2_bad_names_have_the_exact_texts(name: str) -> None:
    with pytest.raises(BadRequest) as tag:
        xml.check_tag_name(name, "signal.tagName")
    assert str(tag.value) == f"Invalid signal XML tag name: {name}"
    assert tag.value.field == "signal.tagName"
    with pytest.raises(BadRequest) as attribute:
        xml.check_attribute_name(name, "signal.attributes")
    assert str(attribute.value) == f"Invalid signal XML attribute name: {name}"


def test_errors_can_always_be_shown() -> None:
    """A lone surrogate or a huge name in an error would break the answer that tells it."""
    with pytest.raises(BadRequest) as caught:
        xml.check_tag_name("\ud800" * 1000)
    text = str(caught.value)
    assert text.encode("utf-8")
    assert len(text) < 200


def test_1_6_6_text_escapes_the_ampersand_first_and_no_quotes() -> None:
    assert xml.escape_text("""a & b <c> "d" 'e' &amp;""") == (
        """a &amp; b &lt;c&gt; "d" 'e' &amp;amp;"""
    )


def test_1_6_7_attributes_escape_double_quotes_only_and_keep_control_characters() -> None:
    assert xml.escape_attribute("a\"b'c\n<&>\x00") == "a&quot;b'c\n&lt;&amp;&gt;\x00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (-7, "-7"),
        (1.5, "1.5"),
        (3.0, "3"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (-0.25, "-0.25"),
        (100.0, "100"),
        (123456.789, "123456.789"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.25e300, "1.25e+300"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2**53, "9007199254740992"),
        (2**60, "1152921504606847000"),
        (10**25, "1e+25"),
        (0.30000000000000004, "0.30000000000000004"),
    ],
)
def test_1_6_5_values_print_as_in_javascript(value: xml.Scalar, text: str) -> None:
    assert xml.value_text(value) == text


@CALM
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_1_6_5_a_printed_number_reads_back(value: float) -> None:
    assert float(xml.value_text(value)) == value


def test_1_6_8_attributes_in_insertion_order() -> None:
    assert xml.element("t", {"z": 1, "a": "x"}, "hi") == '<t z="1" a="x">hi</t>'


def test_1_7_without_text_there_is_a_space_before_the_slash() -> None:
    assert xml.element("t", {}) == "<t />"
    assert xml.element("t", {"a": ""}, "") == '<t a="" />'


@CALM
@given(NAMES, st.dictionaries(NAMES, TEXTS | st.booleans() | NUMBERS), TEXTS)
def test_nothing_breaks_out_of_its_tag(
    tag: str, attributes: dict[str, xml.Scalar], text: str
) -> None:
    """Invariant 11: no text and no value closes its tag or adds an attribute."""
    root = ET.fromstring(xml.element(tag, attributes, text))  # noqa: S314 - made here
    assert root.tag == tag
    assert len(root) == 0
    assert (root.text or "") == text
    assert root.attrib == {name: xml.value_text(value) for name, value in attributes.items()}


@CALM
@given(st.text(), st.text())
def test_any_text_at_all_leaves_just_the_tag_s_own_brackets(value: str, text: str) -> None:
    """Also for characters that XML cannot carry: they may not open or close anything."""
    whole = xml.element("t", {"a": value}, text + "x")
    assert (whole.count("<"), whole.count(">"), whole.count('"')) == (2, 2, 2 + text.count('"'))
