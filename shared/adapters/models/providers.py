"""Makes the clients of each provider from the environment; the only place that knows their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from shared.adapters.models.pydantic_ai import PydanticAIModel
from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_OPENAI_KEY = "set OPENAI_API_KEY (and OPENAI_BASE_URL for a compatible server)"
_OPENAI = "https://api.openai.com/v1"
_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
_SILENCE = 300
"""Seconds without a byte after which a call is cut."""

_CONNECT = 5
_DEFAULTS: dict[str, Any] = {"max_retries": 0, "timeout": _SILENCE}
"""The loop retries, so that each attempt is seen."""


def build(provider: str, name: str, env: Mapping[str, str]) -> PydanticAIModel:
    """Make the client of `provider/name`.

    Raises:
        Misconfigured: a key or an extra is missing, or a base URL is none; says what to do.
    """
    ours = provider in ("openai", "openai-responses")
    try:
        model = (_openai if ours else _other)(provider, name, env)
    except ImportError as error:
        extra = "wakeline[models]" if ours else f"pydantic-ai-slim[{provider}]"
        text = f'model "{provider}/{name}" needs an extra: pip install "{extra}"'
        raise Misconfigured(text) from error
    except UserError as error:
        raise Misconfigured(f'model "{provider}/{name}": {error}') from error
    return PydanticAIModel(model, f"{provider}/{name}", {} if provider == "bedrock" else _DEFAULTS)


def _other(provider: str, name: str, env: Mapping[str, str]) -> Model:
    keys = _KEYS.get(provider, ())
    if keys and not any(env.get(key) for key in keys):
        raise Misconfigured(f'model "{provider}/{name}" needs a key: set {" or ".join(keys)}')
    return _bedrock(name) if provider == "bedrock" else infer_model(f"{provider}:{name}")


def _bedrock(name: str) -> Model:
    """Make the one whose client takes such settings only when it is built."""
    import boto3  # noqa: PLC0415 - its absence is told by the caller
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import NoRegionError  # noqa: PLC0415
    from pydantic_ai.models.bedrock import BedrockConverseModel  # noqa: PLC0415
    from pydantic_ai.providers.bedrock import BedrockProvider  # noqa: PLC0415

    config = Config(
        retries={"total_max_attempts": 1}, read_timeout=_SILENCE, connect_timeout=_CONNECT
    )
    try:
        client = boto3.client("bedrock-runtime", config=config)
    except NoRegionError as error:
        raise Misconfigured(
            f'model "bedrock/{name}" needs a region: set AWS_DEFAULT_REGION'
        ) from error
    return BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=client))


def _openai(provider: str, name: str, env: Mapping[str, str]) -> Model:
    from pydantic_ai.models.openai import (  # noqa: PLC0415 - its absence is told by the caller
        OpenAIChatModel,
        OpenAIResponsesModel,
    )
    from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415

    key, url = env.get("OPENAI_API_KEY") or None, env.get("OPENAI_BASE_URL") or None
    if not key and not url:
        raise Misconfigured(f'model "{provider}/{name}" needs a key: {_NO_OPENAI_KEY}')
    if url and not _is_http(url):
        raise Misconfigured(f"OPENAI_BASE_URL is {url!r}; write it like http://host:port/v1")
    host = urlsplit(url or _OPENAI).hostname or ""
    vendor = (
        OpenAIProvider(base_url=url or _OPENAI, api_key=key or "none")
        if host == "openai.com" or host.endswith(".openai.com")
        else OpenAICompatibleProvider(host, base_url=url or "", api_key=key)
    )
    if provider == "openai-responses":
        return OpenAIResponsesModel(name, provider=vendor)
    # An end without a finish reason is a cut, not an answer.
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name, provider=vendor, profile=profile)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
