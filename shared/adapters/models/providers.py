"""Makes the clients of each provider from the environment; the only place that knows their keys.

Each builder imports its SDK when it runs, and an `ImportError` tells that an extra is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic_ai.exceptions import UserError

from shared.adapters.models.pydantic_ai import PydanticAIModel
from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPENAI = "https://api.openai.com/v1"
_NO_OPENAI_KEY = "OPENAI_API_KEY (and OPENAI_BASE_URL for a compatible server)"
_SILENCE = 300
"""Seconds without a byte after which a call is cut."""

_DEFAULTS: dict[str, Any] = {"max_retries": 0, "timeout": _SILENCE}
"""The loop retries, so that each attempt is seen."""


def build(provider: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    """Make the client of `provider/name`.

    Raises:
        Misconfigured: a key or a region is missing, or a base URL is none; says what to do.
        ImportError: the provider's extra is missing.
    """
    full = f"{provider}/{name}"
    try:
        return _BUILDERS[provider](full, name, env)
    except UserError as error:
        raise Misconfigured(f'model "{full}": {error}') from error


def _anthropic(full: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

    key = env.get("ANTHROPIC_API_KEY") or _missing(full, "ANTHROPIC_API_KEY")
    url = _url(env, "ANTHROPIC_BASE_URL")
    model = AnthropicModel(name, provider=AnthropicProvider(api_key=key, base_url=url))
    return PydanticAIModel(model, full, _DEFAULTS)


def _bedrock(full: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    from shared.adapters.models.bedrock import BedrockModel  # noqa: PLC0415

    return BedrockModel(name, full, silence=_SILENCE)  # boto3 reads the environment itself


def _google(full: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    from shared.adapters.models.google import GeminiModel  # noqa: PLC0415

    key = env.get("GOOGLE_API_KEY") or env.get("GEMINI_API_KEY")
    key = key or _missing(full, "GOOGLE_API_KEY or GEMINI_API_KEY")
    url = _url(env, "GOOGLE_GEMINI_BASE_URL")
    return GeminiModel(name, full, _DEFAULTS, key=key, url=url)


def _openai(full: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415

    # An end without a finish reason is a cut, not an answer.
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    model = OpenAIChatModel(name, provider=_openai_server(full, env), profile=profile)
    return PydanticAIModel(model, full, _DEFAULTS)


def _openai_responses(full: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    from pydantic_ai.models.openai import OpenAIResponsesModel  # noqa: PLC0415

    model = OpenAIResponsesModel(name, provider=_openai_server(full, env))
    return PydanticAIModel(model, full, _DEFAULTS)


_BUILDERS: dict[str, Callable[[str, str, Mapping[str, str]], PydanticAIModel]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}


def _openai_server(full: str, env: Mapping[str, str]) -> Any:
    """Tell OpenAI itself from servers that are compatible with it: only it gets all its options."""
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415

    key, url = env.get("OPENAI_API_KEY") or None, _url(env, "OPENAI_BASE_URL")
    if not key and not url:
        _missing(full, _NO_OPENAI_KEY)
    host = urlsplit(url or _OPENAI).hostname or ""
    if host == "openai.com" or host.endswith(".openai.com"):
        return OpenAIProvider(base_url=url or _OPENAI, api_key=key or "none")
    return OpenAICompatibleProvider(host, base_url=url or "", api_key=key)


def _missing(full: str, names: str) -> str:
    raise Misconfigured(f'model "{full}" needs a key: set {names}')


def _url(env: Mapping[str, str], variable: str) -> str | None:
    """Read a base URL; None when it is not set.

    Raises:
        Misconfigured: it is no URL.
    """
    url = env.get(variable) or None
    if url and not _is_http(url):
        example = "http://host:port/v1" if variable == "OPENAI_BASE_URL" else "http://host:port"
        raise Misconfigured(f"{variable} is {url!r}; write it like {example}")
    return url


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
