"""From a model's name to a client: laziness, and one clear line when something is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from shared.adapters.models.demo import DemoModel
from shared.adapters.models.providers import build
from shared.adapters.models.pydantic_ai import PydanticAIModel
from shared.adapters.models.resolve import PROVIDERS, resolve
from shared.core.errors import Misconfigured
from tests.arch.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    resolve.cache_clear()
    yield
    resolve.cache_clear()


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_client_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert resolve("openai/m1") is resolve("openai/m1")
    assert resolve("openai/m1") is not resolve("openai/m2")
    assert isinstance(resolve("demo"), DemoModel)


def test_a_missing_key_is_told_and_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured) as caught:
        resolve("openai/m1")
    assert str(caught.value) == (
        'model "openai/m1" needs a key: set OPENAI_API_KEY '
        "(and OPENAI_BASE_URL for a compatible server)"
    )
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert isinstance(resolve("openai/m1"), PydanticAIModel)


@pytest.mark.parametrize("model", ["nobody/m1", "openai", "openai/", ""])
def test_an_unknown_model_is_told(model: str) -> None:
    with pytest.raises(Misconfigured, match=r"is not known; use demo or one of openai/…"):
        resolve(model)


@pytest.mark.parametrize("url", ["localhost:80/v1", "http://", "ftp://a/b", "http://a:b"])
def test_a_base_url_that_is_none_is_told(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"OPENAI_BASE_URL is .*; write it like"):
        build("openai", "m1", {"OPENAI_BASE_URL": url})
    with pytest.raises(Misconfigured, match=r"ANTHROPIC_BASE_URL is .*; write it like"):
        build("anthropic", "m1", {"ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": url})
    with pytest.raises(Misconfigured, match=r"GOOGLE_GEMINI_BASE_URL is .*; write it like"):
        build("google", "m1", {"GOOGLE_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": url})


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("openai-responses", "set OPENAI_API_KEY"),
        ("anthropic", "set ANTHROPIC_API_KEY"),
        ("google", "set GOOGLE_API_KEY or GEMINI_API_KEY"),
    ],
)
def test_every_provider_tells_its_key(provider: str, says: str) -> None:
    with pytest.raises(Misconfigured, match=says):
        build(provider, "m1", {})


def test_bedrock_needs_no_key_but_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with pytest.raises(Misconfigured, match="set AWS_DEFAULT_REGION"):
        build("bedrock", "anthropic.claude", {})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert build("bedrock", "anthropic.claude", {}).name == "bedrock/anthropic.claude"


@pytest.mark.parametrize(
    ("missing", "providers"),
    [
        (["openai", "anthropic", "google.genai"], PROVIDERS.keys() - {"bedrock"}),
        (["pydantic_ai"], PROVIDERS.keys()),
    ],
)
def test_a_missing_extra_is_told(
    missing: list[str], providers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(key, "key")
    said = python(
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "from shared.adapters.models.resolve import resolve\n"
        "from shared.core.errors import Misconfigured\n"
        f"for provider in {sorted(providers)!r}:\n"
        "    try: resolve(f'{provider}/m1')\n"
        "    except Misconfigured as error: print(error)"
    )
    assert said.splitlines() == [
        f'model "{name}/m1" needs an extra: pip install "wakeline[{PROVIDERS[name]}]"'
        for name in sorted(providers)
    ]


def test_every_provider_has_its_extra() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(PROVIDERS.values()) <= set(extras)
    versions = {extra.partition("~=")[2] for name in PROVIDERS.values() for extra in extras[name]}
    assert len(versions) == 1, "the extras name one version of pydantic-ai"


def test_a_provider_loads_no_sdk_but_its_own() -> None:
    loaded = python(
        "import os, sys; os.environ['ANTHROPIC_API_KEY'] = 'key'\n"
        "from shared.adapters.models.resolve import resolve; resolve('anthropic/claude-opus-5')\n"
        "print(*sys.modules)"
    ).split()
    assert "anthropic" in loaded
    assert {"openai", "google.genai", "boto3", "botocore"}.isdisjoint(loaded)


def test_resolving_the_demo_loads_no_sdk() -> None:
    loaded = python(
        "import sys; from shared.adapters.models.resolve import resolve; resolve('demo')\n"
        "print(*sys.modules)"
    ).split()
    assert {"openai", "pydantic_ai", "httpx", "httpx2"}.isdisjoint(loaded)
