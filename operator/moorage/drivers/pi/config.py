"""pi's own list of models: one provider, which is the run's model door."""

from __future__ import annotations

import json

PROVIDER = "moorage"
CONTEXT_WINDOW = 200_000  # tokens; pi makes its context smaller when it comes near
MAX_TOKENS = 16_384  # of one answer
# by the ModelProvider's protocol: pi's own name of it, and where its client expects the provider
APIS = {
    "anthropic-messages": ("anthropic-messages", "/model"),
    "openai-responses": ("openai-responses", "/model/v1"),
    "openai-chat": ("openai-completions", "/model/v1"),
}


def models(protocol: str, model: str, relay_url: str, key: str) -> str:
    """The text of models.json. Raises KeyError for a protocol that pi doesn't speak."""
    api, path = APIS[protocol]
    entry = {"id": model, "contextWindow": CONTEXT_WINDOW, "maxTokens": MAX_TOKENS}
    provider = {"baseUrl": f"{relay_url}{path}", "api": api, "apiKey": key, "models": [entry]}
    return json.dumps({"providers": {PROVIDER: provider}}, indent=1)
