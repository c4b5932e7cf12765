"""ModelProvider: an endpoint that serves models, and the credential that the gateway adds on the way out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moorage.api.meta import Conditions, KeyRef, NotLinkLocal, Resource
from moorage.api.quantity import Duration, Price, Tokens
from moorage.api.rules import Fields, KeyedBy, Told, matching, without


class Prices(Fields):
    """What a million tokens of each kind cost, in US dollars. Reasoning is part of the output."""

    input: Price = Field(description='Input that comes from no cache, for example "3.00".')
    output: Price = Field(description='Output, reasoning included, for example "15.00".')
    cache_read: Price | None = Field(
        default=None, description='Input that is read from a cache, for example "0.30". Default: as input.'
    )
    cache_write: Price | None = Field(
        default=None, description='Input that is written to a cache, for example "3.75". Default: as input.'
    )
    cache_write_hour: Price | None = Field(
        default=None,
        description='Of those, what is written for an hour, for example "6.00", where the provider tells it apart.'
        " Default: as cacheWrite.",
    )


class ProvidedModel(Fields):
    """A model that the endpoint serves."""

    name: Annotated[str, Field(max_length=256), matching("[^\\s]+", "must be the model's name, without spaces")] = (
        Field(description="Name of the model as the provider knows it.")
    )
    prices: Prices | None = Field(
        default=None,
        description="What its tokens cost. constraints.cost needs them, and without them a run's cost is told as 0.",
    )
    max_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None,
        description="Most tokens of one answer. So many are reserved for a request that doesn't say how many it allows."
        " Default: 128000.",
    )
    context_window: Annotated[int, Field(ge=1_024, le=100_000_000)] | None = Field(
        default=None,
        description="Most tokens of a request and its answer together. builtin makes its conversation smaller when it"
        " comes near, and pi is told. Default: 200000.",
    )


class ProviderRetries(Fields):
    """How a request is sent again that the endpoint didn't answer, before the agent hears of it."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = Field(
        default=4,
        description="Most times that one request is sent, the first one included. 1: never again; the agent hears of"
        " every failure.",
    )
    budget: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=100,
        description="Retries that one run may spend, over all its requests and attempts; status.usage.modelRetries"
        " counts them. 0 left means 0: the agent hears of every failure from then on.",
    )
    max_wait: Duration = Field(
        default=Duration("1m"),
        description="Longest wait before one retry. Where the endpoint asks for more by Retry-After, the agent hears it"
        " at once.",
    )


class ModelProviderSpec(Fields):
    """An endpoint that serves models."""

    protocol: Literal["anthropic-messages", "openai-responses", "openai-chat"] = Field(
        description="What the endpoint speaks: anthropic-messages, openai-responses or openai-chat."
    )
    base_url: Annotated[
        str,
        Field(max_length=2048),
        matching(
            r"https?://[^\s/@?#]*@?([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^\s?#]*)?",
            "must be an http or https URL such as https://api.example.com, without a query",
        ),
        without(
            "^https?://[^/]*@", "must not carry credentials: put them into a Secret and name it in credentialsSecretRef"
        ),
        NotLinkLocal,
    ] = Field(
        alias="baseURL",
        description="Where the endpoint is, without the protocol's own path (/v1/messages, …). It may end with /v1.",
    )
    credentials_secret_ref: KeyRef | None = Field(
        default=None,
        description="Secret and key with the provider's API key; read by the gateway when it is used. The sandbox never"
        " sees it. Left out: the endpoint asks for none.",
    )
    models: Annotated[tuple[ProvidedModel, ...], Field(max_length=64), KeyedBy("name")] | None = Field(
        default=None, description="Models that runs may use. Left out: the one that the run's agent names."
    )
    max_concurrent_requests: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="Most requests under way at once, at each gateway. Others wait, and have their turns one run after"
        " the other. Left out: no limit.",
    )
    requests_per_minute: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None,
        description="Most requests in a minute, over all gateways: each takes its share of them. Others wait for their"
        " turns. Left out: no limit.",
    )
    tokens_per_minute: Tokens | None = Field(
        default=None,
        description="Most tokens in a minute, input and output, for example 400k; shared and waited for likewise."
        " Tokens that the endpoint reads from its cache don't count. Left out: no limit.",
    )
    retries: ProviderRetries = Field(
        default=ProviderRetries(),
        description="How often a request that the endpoint didn't answer is sent again before the agent hears of it.",
    )
    capture: bool = Field(
        default=False,
        description="Keep what is asked and answered where those who may read the run can read it, too. Left out: it is"
        " kept encrypted, for a recovery alone.",
    )


class ModelProviderStatus(Told):
    """What is known about a ModelProvider."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    conditions: Conditions = ()


class ModelProvider(Resource):
    """ModelProvider is an endpoint that serves models.

    Agents reach it through the gateway, which adds the credential.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["ModelProvider"] = "ModelProvider"
    spec: ModelProviderSpec = Field(description="The definition.")
    status: ModelProviderStatus | None = Field(
        default=None, description="What is known about it; written by the operator."
    )
