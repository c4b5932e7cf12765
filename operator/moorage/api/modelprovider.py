"""ModelProvider: an endpoint that serves models, and the credential that the gateway adds on the way out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moorage.api.meta import Conditions, KeyRef, NotLinkLocal, Resource
from moorage.api.rules import Fields, KeyedBy, Told, matching, without


class ProvidedModel(Fields):
    """A model that the endpoint serves."""

    name: Annotated[str, Field(max_length=256), matching("[^\\s]+", "must be the model's name, without spaces")] = (
        Field(description="Name of the model as the provider knows it.")
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
    ] = Field(alias="baseURL", description="Where the endpoint is, without the protocol's own path (/v1/messages, …).")
    credentials_secret_ref: KeyRef | None = Field(
        default=None,
        description="Secret and key with the provider's API key; read by the gateway when it is used. The sandbox never"
        " sees it. Left out: the endpoint asks for none.",
    )
    models: Annotated[tuple[ProvidedModel, ...], Field(max_length=64), KeyedBy("name")] | None = Field(
        default=None, description="Models that runs may use. Left out: the one that the run's agent names."
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
