"""ModelProvider: an endpoint that serves models, and the credential that the gateway adds on the way out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moorage.api.meta import Conditions, KeyRef, NotLinkLocal, Resource
from moorage.api.quantity import Price
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
