"""From a model's name to its client. Loads a model SDK only when one is asked for."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from shared.ports import ModelClient

PROVIDERS = {
    "openai": "models",
    "openai-responses": "models",
    "anthropic": "anthropic",
    "google": "google",
    "bedrock": "bedrock",
}
"""Providers, and the extra that each needs."""


@cache
def resolve(model: str) -> ModelClient:
    """Return the client of a model: `demo`, or `provider/model` with one of `PROVIDERS`.

    It is made once per process and name, and belongs to the event loop that uses it first.

    Raises:
        Misconfigured: an unknown provider, a missing key or a missing extra; says what to do.
    """
    provider, _, name = model.partition("/")
    if provider == "demo":
        from shared.adapters.models.demo import DemoModel  # noqa: PLC0415 - only when used

        delay = os.environ.get("WAKELINE_DEMO_DELAY", "20")
        if not delay.isdecimal():
            raise Misconfigured(f"WAKELINE_DEMO_DELAY is {delay!r}; give milliseconds, like 20")
        return DemoModel(float(delay))
    if provider not in PROVIDERS or not name:
        known = ", ".join(f"{known}/…" for known in PROVIDERS)
        raise Misconfigured(f"model {model!r} is not known; use demo or one of {known}")
    try:
        from shared.adapters.models.providers import build  # noqa: PLC0415 - a slow import

        return build(provider, name, os.environ)
    except ImportError as error:
        extra = f"wakeline[{PROVIDERS[provider]}]"
        text = f'model "{model}" needs an extra: pip install "{extra}"'
        raise Misconfigured(text) from error
