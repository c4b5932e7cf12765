"""pi's own list of models: one provider, which is the run's model door."""

from __future__ import annotations

import json

PROVIDER = "moorage"
MAX_TOKENS = 16_384  # of one answer
# by the ModelProvider's protocol: pi's own name of it, and where its client expects the provider
APIS = {
    "anthropic-messages": ("anthropic-messages", "/model"),
    "openai-responses": ("openai-responses", "/model/v1"),
    "openai-chat": ("openai-completions", "/model/v1"),
}


def models(protocol: str, model: str, relay_url: str, key: str, window: int) -> str:
    """The text of models.json. `window`: tokens of the model's context, which pi stays within by itself.

    Raises KeyError for a protocol that pi doesn't speak.
    """
    api, path = APIS[protocol]
    entry = {"id": model, "contextWindow": window, "maxTokens": MAX_TOKENS}
    provider = {"baseUrl": f"{relay_url}{path}", "api": api, "apiKey": key, "models": [entry]}
    return json.dumps({"providers": {PROVIDER: provider}}, indent=1)
