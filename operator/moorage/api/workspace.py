"""Workspace: where work happens. Exactly one source, and how its volumes, branches and checkpoints are kept."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.meta import Conditions, Name, NotLinkLocal, Resource, SecretKey
from moorage.api.quantity import Quantity
from moorage.api.rules import Fields, Rule, Told, exactly_one, matching, without

DEFAULT_BRANCH_PREFIX = "moorage/"

# What `git check-ref-format` refuses anywhere in a ref, and a leading hyphen, which would be an option.
_NO_REF = r"(^[-/])|([.]{2})|(//)|(@[{])|([\x00-\x20\x7f~^:?*\[\\])|((^|/)[.])|([.]lock(/|$))|([.]$)"
_NO_BRANCH = rf"{_NO_REF}|(^@$)|(^refs/)"
_END = "|(/$)"
_BRANCH_ADVICE = (
    "must be a branch name that git accepts: no spaces, '..', '//', '@{' or any of ~^:?*[\\, not beginning with '-',"
    " '/', '.' or 'refs/', not ending in '/', '.' or '.lock'"
)


def _at_most(limit: int) -> Rule:
    return Rule(
        f"must be at most {limit} bytes of UTF-8: shorten it",
        f"size(bytes(self)) <= {limit}",
        lambda text: len(text.encode()) <= limit,
    )


_MAX_BRANCH_BYTES = 244  # a file name in git's ref store, with ".lock" behind it
BranchName = Annotated[
    str,
    Field(min_length=1, max_length=_MAX_BRANCH_BYTES),
    without(_NO_BRANCH + _END, _BRANCH_ADVICE),
    _at_most(_MAX_BRANCH_BYTES),
    without("^HEAD$", "HEAD isn't a branch; name the branch itself, such as moorage/fix-login"),
]
GitRef = Annotated[
    str,
    Field(min_length=1, max_length=244),
    without(
        _NO_REF + _END,
        "must be a branch, a tag or a full commit id: no spaces, '..' or any of ~^:?*[\\, not beginning with '-'",
    ),
]
_HOST = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?"
_SCHEMES = rf"(https?|ssh)://([^\s/@]*@)?({_HOST}|\[[0-9a-fA-F:.]+\])(:[0-9]{{1,5}})?/[^\s\x00-\x1f\x7f?#]+"
_SCP = rf"[A-Za-z0-9_][-A-Za-z0-9_.]*@{_HOST}:[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*"
GitUrl = Annotated[
    str,
    Field(max_length=2048),
    matching(
        f"{_SCHEMES}|{_SCP}",
        "must be the URL of a git repository: https://host/path, http://host/path, ssh://host/path or git@host:path,"
        " without spaces or a query, and with a host that doesn't begin with '-'",
    ),
    without(
        r"^(https?://[^/]*@)|(ssh://[^/]*:[^/]*@)",
        "must not carry credentials: put them into a Secret and name it in credentialsSecretRef",
    ),
    NotLinkLocal,
]


CloneFilter = Annotated[
    str,
    Field(max_length=64),
    matching(
        "blob:none|blob:limit=[0-9]{1,12}[kmg]?|tree:[0-9]{1,4}",
        "must be a partial clone's filter: blob:none, blob:limit=1m or tree:0",
    ),
]
Folder = Annotated[
    str,
    Field(max_length=512),
    matching(
        r"[^-/\x00-\x1f\x7f][^\x00-\x1f\x7f]*", "must be a folder inside the repository, not beginning with '/' or '-'"
    ),
    without(r"(^|/)[.][.](/|$)", "must be a folder inside the repository, without '..'"),
]


class SecretRef(Fields):
    """A Secret in the same namespace; read by the gateway when it is used, and never in a sandbox."""

    name: Name = Field(description="Name of the Secret, in the same namespace.")
    key: SecretKey | None = Field(
        default=None,
        description="Key of the token or password in it. Default: the keys username and password, as in Secrets of type"
        " kubernetes.io/basic-auth.",
    )


class ForgeApi(Fields):
    """The API of the remote's host, by which pull requests are made."""

    kind: Literal["github", "gitlab", "gitea"] = Field(description="github, gitlab or gitea (Forgejo too).")
    url: GitUrl | None = Field(
        default=None,
        description="Address of the API, for example https://git.example.com/api/v4. Default: the kind's usual place at"
        " the remote's host; of github.com, https://api.github.com.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="Secret with a token that may make pull requests, under token or password. Default: what the"
        " remote's own credentialsSecretRef names. It stays outside the sandbox.",
    )


class RemoteGit(Fields):
    """A repository that is fetched into the gateway's mirror; the sandbox sees the mirror only."""

    url: GitUrl = Field(
        description="https://host/path or http://host/path; no credentials in it. ssh://host/path and git@host:path are"
        " not supported by this version: a run of such a workspace is not admitted."
    )
    ref: GitRef | None = Field(
        default=None,
        description="Branch, tag or commit to start from; fixed when the run is admitted. Default: the remote's HEAD.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None, description="Secret with what the remote asks for. It stays outside the sandbox."
    )
    api: ForgeApi | None = Field(
        default=None, description="API of the remote's host. Needed for delivery.pullRequest, and for nothing else."
    )
    depth: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Commits of history in the worktree; at least 1. Default: all."
    )
    filter: CloneFilter | None = Field(
        default=None, description="Objects that are fetched when they are needed, for example blob:none."
    )
    sparse: Annotated[tuple[Folder, ...], Field(max_length=128)] | None = Field(
        default=None, description="Folders that are checked out. Default: all."
    )
    submodules: bool = Field(
        default=False,
        description="Whether to work in a repository that has submodules, their folders left empty. If false, such"
        " a run ends with SubmodulesUnsupported.",
    )
    lfs: bool = Field(
        default=False,
        description="Whether Git LFS files are fetched. Not supported by this version, which leaves pointers in their"
        " place: a run of such a workspace is not admitted.",
    )


class LocalSource(Fields):
    """A repository that is there already."""

    claim_name: Name | None = Field(
        default=None, description="PersistentVolumeClaim, in the same namespace, that holds a repository."
    )
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Folder of a repository, in runs without a cluster (moorage run -f) only."
    )
    ref: GitRef | None = Field(
        default=None, description="Branch, tag or commit to start from. Default: what is checked out there."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "local.path is for runs without a cluster (moorage run -f); here, name a"
            " PersistentVolumeClaim in local.claimName",
            "!has(self.path)",
            lambda local: local.path is None,
            field="path",
            only="cluster",
        ),
        Rule(
            "local needs claimName: a PersistentVolumeClaim, in the same namespace, that holds a repository",
            "has(self.claimName) || has(self.path)",
            lambda local: local.claim_name is not None or local.path is not None,
            only="cluster",
        ),
        Rule(
            "local needs path here: without a cluster there are no volume claims",
            holds=lambda local: local.claim_name is None and local.path is not None,
            only="local",
        ),
    )


class Ephemeral(Fields):
    """An empty repository that goes with the run."""


class WorkspaceSource(Fields):
    """Where work happens: exactly one source."""

    remote_git: RemoteGit | None = Field(default=None, description="A git repository by its URL.")
    local: LocalSource | None = Field(default=None, description="A repository on a volume that is there already.")
    ephemeral: Ephemeral | None = Field(default=None, description="An empty repository that goes with the run.")

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("set exactly one of remoteGit, local and ephemeral", "remoteGit", "local", "ephemeral"),
    )


class Storage(Fields):
    """Volumes of the runs' worktrees."""

    storage_class_name: Name | None = Field(
        default=None, description="StorageClass of the volumes. Default: the cluster's default class."
    )
    size: Quantity | None = Field(
        default=None,
        description="Size of a volume where neither the run nor its Agent sets sandbox.resources.disk, for example"
        " 10Gi.",
    )


class WorkspaceSpec(WorkspaceSource):
    """Where work happens, and how it is kept."""

    storage: Storage | None = Field(default=None, description="Volumes of the runs' worktrees.")
    branch_prefix: Annotated[
        str,
        Field(max_length=100),
        _at_most(100),
        without(_NO_BRANCH, _BRANCH_ADVICE + " (a prefix may end in '/')"),
    ] = Field(
        default=DEFAULT_BRANCH_PREFIX,
        description="What the branch of a run begins with where its delivery names none; the run's name follows.",
    )


class WorkspaceStatus(Told):
    """What is known about a Workspace."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    conditions: Conditions = ()


class Workspace(Resource):
    """Workspace is where work happens: a git repository by its URL, one on a volume, or an empty one.

    AgentRuns name it in workspaceRef; it is read once, when a run is admitted. Each run works in a worktree and on a
    branch of its own.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["Workspace"] = "Workspace"
    spec: WorkspaceSpec = Field(description="The definition.")
    status: WorkspaceStatus | None = Field(default=None, description="What is known about it; written by the operator.")
