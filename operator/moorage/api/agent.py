"""Agent: a reusable definition of a program that works, with the sandbox and the limits that it usually needs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.constraints import Constraints
from moorage.api.meta import Conditions, KeyRef, Label, Name, ObjectRef, Resource
from moorage.api.quantity import Memory, Quantity
from moorage.api.rules import Fields, KeyedBy, Rule, Told, matching, without

MAX_ARGUMENTS = 64
REAL_AGENTS = frozenset({"claude-code", "codex", "pi"})  # drivers of programs that are somebody else's

Argument = Annotated[str, Field(max_length=16_384)]
Image = Annotated[
    str,
    Field(max_length=512),
    matching(
        "[a-zA-Z0-9][-a-zA-Z0-9._]*(:[0-9]{1,5})?(/[a-z0-9][-a-z0-9._]*)*(:[a-zA-Z0-9_][-a-zA-Z0-9._]{0,127})?"
        "(@[a-z0-9]+:[a-f0-9]{32,128})?",
        "must be an image reference such as registry.example/name@sha256:… , without a scheme or spaces",
    ),
]


ModelName = Annotated[str, Field(max_length=256), matching("[^\\s]+", "must be the model's name, without spaces")]


class ModelChoice(Fields):
    """Which model an agent talks to."""

    provider_ref: ObjectRef = Field(
        description="The ModelProvider that serves the model. Its credential never enters the sandbox."
    )
    name: ModelName = Field(description="Name of the model as the provider knows it, for example gpt-5.2-codex.")


class EnvVar(Fields):
    """A plain environment variable."""

    name: Annotated[
        str,
        Field(max_length=128),
        matching("[A-Za-z_][A-Za-z0-9_]*", "must be letters, digits and '_', not beginning with a digit"),
        without("^MOORAGE_", "names that begin with MOORAGE_ are Moorage's own; choose another"),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=16_384)] = Field(
        default="",
        description="Its value, readable by the agent and by anybody who may read this object: no secrets."
        " Credentials for models, git and allowed hosts are added by the gateway on the way out.",
    )


class Continuation(Fields):
    """What happens when the agent says that it is done."""

    check_rounds: Annotated[int, Field(ge=0, le=20)] = Field(
        default=2,
        description="How often an end is checked before it is taken, and the agent told what stands against it: the"
        " acceptance commands that fail, a change that was asked for and isn't there. 0: never. The driver command"
        " can't be told, and isn't checked.",
    )
    nudges: Literal["Auto", "On", "Off"] = Field(
        default="Auto",
        description="Whether signs alone put an end off too: open items of the agent's own plan, a few words after"
        " much work. Auto: for builtin, and for no other program.",
    )
    plan: bool = Field(
        default=False,
        description="Whether the agent is only to plan. Its end is then taken as it says it, unchecked; acceptance"
        " decides afterwards as always.",
    )


class ChildrenAllowed(Fields):
    """How many children the agent may start, out of its run's budget."""

    max: Annotated[int, Field(ge=1, le=100)] = Field(description="How many in all.")
    concurrent: Annotated[int, Field(ge=1, le=20)] = Field(default=2, description="How many at a time.")


class AgentTemplate(Fields):
    """The program that works."""

    driver: Label = Field(
        description="How the program is driven: command, builtin, claude-code, codex, pi, acp, or another driver that"
        " is installed. An unknown driver is told in the condition Admitted."
    )
    image: Image | None = Field(
        default=None,
        description="Image of the sandbox, best pinned by digest. Default: the base image of this installation.",
    )
    command: tuple[Argument, ...] | None = Field(
        default=None,
        max_length=MAX_ARGUMENTS,
        description='The program and its arguments, for the driver "command", for example ["sh", "-c", "ruff format ."]'
        ". It finds the goal in the file $MOORAGE_GOAL_FILE.",
    )
    args: tuple[Argument, ...] | None = Field(
        default=None, max_length=MAX_ARGUMENTS, description="Further arguments for the driver's program."
    )
    model: ModelChoice | None = Field(default=None, description="The model that the agent talks to.")
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), KeyedBy("name")] | None = Field(
        default=None, description="Environment of the agent. Names are unique."
    )
    continuation: Continuation | None = Field(
        default=None, description="What happens when the agent says that it is done."
    )
    children: ChildrenAllowed | None = Field(
        default=None,
        description="Whether the agent may start child runs, each with part of the run's budget. None unless set; not"
        " for the driver command, and not in a local run.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            'the drivers "command" and "acp" need a command, such as ["sh", "-c", "ruff format ."]',
            "!(self.driver in ['command', 'acp']) || (has(self.command) && self.command.size() > 0)",
            lambda agent: agent.driver not in {"command", "acp"} or bool(agent.command),
            field="command",
        ),
        Rule(
            'the driver "builtin" needs a model with providerRef and name',
            "self.driver != 'builtin' || has(self.model)",
            lambda agent: agent.driver != "builtin" or agent.model is not None,
            field="model",
        ),
        Rule(
            'the driver "builtin" is a program of its own and takes neither command nor args: leave them out',
            "self.driver != 'builtin' || (!has(self.command) && !has(self.args))",
            lambda agent: agent.driver != "builtin" or (agent.command is None and agent.args is None),
            field="command",
        ),
        Rule(
            'the drivers "claude-code", "codex" and "pi" need a model with providerRef and name',
            "!(self.driver in ['claude-code', 'codex', 'pi']) || has(self.model)",
            lambda agent: agent.driver not in REAL_AGENTS or agent.model is not None,
            field="model",
        ),
        Rule(
            'the drivers "claude-code", "codex" and "pi" start their own programs: name options in args, not command',
            "!(self.driver in ['claude-code', 'codex', 'pi']) || !has(self.command)",
            lambda agent: agent.driver not in REAL_AGENTS or agent.command is None,
            field="command",
        ),
    )


HttpMethod = Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
HttpPath = Annotated[
    str,
    Field(max_length=256),
    matching("/[-A-Za-z0-9._~!$&'()*+,;=:@/]*", "must be a path such as /v1/orders, without a query or '%'"),
    without("(^|/)[.][.]?(/|$)", "must be a path without '.' and '..'"),
]
HeaderName = Annotated[
    str,
    Field(max_length=64),
    matching("[A-Za-z][-A-Za-z0-9]*", "must be the name of a header, such as Idempotency-Key"),
    without(
        "(?i)^(host|connection|content-length|transfer-encoding|te|trailer|upgrade|x-moorage-.*)$",
        "must not be a header of the connection's own",
    ),
]


EgressHostName = Annotated[
    str,
    Field(max_length=253),
    matching(
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*[.][a-z]([-a-z0-9]*[a-z0-9])?",
        "must be a full host name such as api.example.com: no scheme, port, wildcard or address",
    ),
]


class EgressHost(Fields):
    """A host that the agent may reach through the gateway."""

    host: EgressHostName = Field(description="Full host name, for example api.example.com.")
    effects: Literal["none", "keyed", "opaque"] = Field(
        default="opaque",
        description="What requests to it may change: nothing (none), something that an idempotency key protects"
        " (keyed), or anything (opaque: what is cut ends unknown and is never repeated). GET, HEAD and OPTIONS are"
        " taken for reads everywhere.",
    )
    scheme: Literal["https", "http"] = Field(
        default="https",
        description="How the gateway speaks to the host. The agent asks for http://HOST/… by way of its proxy in either"
        " case; encryption is added on the way out.",
    )
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of the host. Default: 443 for https, 80 for http."
    )
    methods: Annotated[tuple[HttpMethod, ...], Field(min_length=1, max_length=7)] | None = Field(
        default=None, description="Methods that requests may have. Default: all of these. With it, no tunnel is opened."
    )
    paths: Annotated[tuple[HttpPath, ...], Field(min_length=1, max_length=32)] | None = Field(
        default=None,
        description="Paths that requests may go to, each with all that lies below it. Default: all. With it, no tunnel"
        " is opened.",
    )
    credentials_secret_ref: KeyRef | None = Field(
        default=None,
        description="Secret and key of what the gateway adds to requests; read when it is used. The sandbox never sees"
        " it, and nothing is added to what passes a tunnel.",
    )
    credential_header: HeaderName = Field(
        default="Authorization",
        description='Header that carries the credential: in Authorization as "Bearer …", in any other as it is.',
    )
    key_header: HeaderName = Field(
        default="Idempotency-Key",
        description="Header that carries the idempotency key, where effects is keyed. The gateway sets it.",
    )


class Resources(Fields):
    """What the sandbox may use, as Kubernetes quantities."""

    cpu: Quantity | None = Field(default=None, description="Cores, for example 2 or 500m.")
    memory: Memory | None = Field(
        default=None, description="Memory, for example 4Gi, and at least 64Mi. Over it the agent is killed."
    )
    disk: Quantity | None = Field(default=None, description="Size of the worktree's volume, for example 10Gi.")


class Sandbox(Fields):
    """Where the agent runs, apart from everything else."""

    runtime_class_name: Name | None = Field(
        default=None,
        description="RuntimeClass of the sandbox: gvisor or kata. Default: that of the Agent, else of this installation"
        " (gvisor). A class that isn't installed is told in the condition SandboxReady.",
    )
    resources: Resources | None = Field(default=None, description="Limits on cpu, memory and disk.")
    egress: Annotated[tuple[EgressHost, ...], Field(max_length=64), KeyedBy("host")] | None = Field(
        default=None,
        description="Hosts that the agent may reach, by way of the gateway alone. Nothing unless listed.",
    )


class AgentSpec(AgentTemplate):
    """A reusable agent: the program, and what it usually needs."""

    sandbox: Sandbox | None = Field(
        default=None, description="Default sandbox; a field that the AgentRun sets takes its place."
    )
    constraints: Constraints | None = Field(
        default=None, description="Default limits; a field that the AgentRun sets takes its place."
    )


class AgentStatus(Told):
    """What is known about an Agent."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    conditions: Conditions = ()


class Agent(Resource):
    """Agent is a reusable definition of a program that works: driver, image, model, arguments, sandbox and limits.

    AgentRuns name it in agentRef; it is read once, when a run is admitted.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["Agent"] = "Agent"
    spec: AgentSpec = Field(description="The definition.")
    status: AgentStatus | None = Field(default=None, description="What is known about it; written by the operator.")
