"""Which thread a path names, whatever is in its id (P55)."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from functions.api.middleware import plain, routed
from shared.core.errors import BadRequest
from shared.core.limits import check_id

IDS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)


def as_served(raw: str) -> str:
    """Route a path as an ASGI server hands it on: decoded, with the bytes that came beside it."""
    return routed(unquote(raw), raw.encode())


@example("slack:C1:1.2/3")
@example("a/messages")
@example("%2F")
@example("/")
@given(IDS)
def test_an_encoded_id_is_one_segment_and_comes_back_whole(id: str) -> None:
    path = as_served(f"/api/memory/threads/{quote(id, safe='')}/messages")
    *front, segment, last = path.split("/")
    assert (front, last) == (["", "api", "memory", "threads"], "messages")
    assert plain(segment) == id


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/api/agents/", "/api/agents"),
        ("/api/agents", "/api/agents"),
        ("/", "/"),
        ("/api/memory/threads/a%20b/", "/api/memory/threads/a b"),
        ("/api/memory/threads/slack:C1:1.2/3", "/api/memory/threads/slack:C1:1.2/3"),
    ],
)
def test_a_trailing_slash_counts_for_nothing_and_plain_slashes_stay(raw: str, path: str) -> None:
    assert as_served(raw) == path


@pytest.mark.parametrize("raw", ["/a%00b", "/%2Fa%00b"])
def test_an_encoded_control_character_never_becomes_a_slash(raw: str) -> None:
    with pytest.raises(BadRequest, match="control characters"):
        check_id(plain(as_served(raw).removeprefix("/")), "thread")


def test_a_server_that_keeps_no_raw_path_gives_no_way_around_either() -> None:
    assert "/" not in plain(routed("a\x00b", None))
    assert routed("/api/threads/a/b/events", None) == "/api/threads/a/b/events"
