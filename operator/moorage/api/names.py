"""Names, labels and annotations of what stands for a run: bounded, legal, and without collisions.

A name is derived from the run's UID, never from its name alone: two runs of one name, one after the other, never share
a child. What of the run's own name fits goes in front for people; the whole of it is kept in the annotation `RUN_NAME`.
"""

from __future__ import annotations

import hashlib
import re

GROUP = "moorage.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KINDS = ("agentruns", "workspaces", "agents", "modelproviders", "runcommands")  # plurals of what runs need
CONSTRAINTS = "resourceconstraints"  # and of what they do without

RUN = f"{GROUP}/run"  # label: the run's UID
ROLE = f"{GROUP}/role"  # label: runner | verifier
EPOCH = f"{GROUP}/epoch"  # label of a pod, annotation of a Lease
RUN_NAME = f"{GROUP}/run-name"  # annotation: the run's name as its author wrote it
COMMIT = f"{GROUP}/commit"  # annotation of a verifier: what it verifies
MANAGED_BY = "app.kubernetes.io/managed-by"
PART_OF = "app.kubernetes.io/part-of"
PRODUCT = "moorage"

SANDBOX = "moorage-sandbox"  # ServiceAccount and NetworkPolicy of a tenant's namespace

NAME_LIMIT = 63  # a pod's name is its host name too: one DNS label
_HASH = 12  # 48 bits: 10 million children of one slug collide with a chance below 1 in 5
_ILLEGAL = re.compile(r"[^a-z0-9]+")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def digest(*parts: object) -> str:
    """Twelve hex digits over `parts`, which are told apart however they are cut."""
    joined = "\x1f".join(str(p) for p in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:_HASH]


def slug(text: str, limit: int = NAME_LIMIT) -> str:
    """`text` as the beginning of a DNS label: lower case, digits and hyphens, at most `limit` long; never empty."""
    plain = _ILLEGAL.sub("-", text.lower()).strip("-")
    return plain[:limit].strip("-") or "run"


def hashed(text: str, *parts: object) -> str:
    """A DNS-1123 label of at most 63 characters: as much of `text` as fits, then a hash of `parts`."""
    return f"{slug(text, NAME_LIMIT - _HASH - 1)}-{digest(*parts)}"


def sandbox_name(run_uid: str, run_name: str, epoch: int, role: str, serial: int) -> str:
    """F2: the pod's name follows from run, epoch, role and serial, so that a second create finds the first."""
    return hashed(run_name, run_uid, epoch, role, serial)


def volume_name(run_uid: str, run_name: str) -> str:
    """The claim that holds the run's worktree."""
    return hashed(run_name, run_uid, "volume")


def lease_name(run_uid: str, run_name: str) -> str:
    """F1: the run's Lease."""
    return hashed(run_name, run_uid, "lease")


def event_name(run_name: str, *parts: object) -> str:
    """An Event's name: the same facts give the same name, so that they are counted instead of repeated."""
    return hashed(run_name, "event", *parts)


def label_value(text: str) -> str:
    """`text` where it is a legal label value, else a bounded, hashed likeness of it."""
    return text if _LABEL_VALUE.fullmatch(text) else hashed(text, text)


def run_labels(run_uid: str) -> dict[str, str]:
    """What every child of a run carries."""
    return {MANAGED_BY: PRODUCT, RUN: label_value(run_uid)}


def sandbox_labels(run_uid: str, role: str, epoch: int) -> dict[str, str]:
    """What a sandbox pod carries; the NetworkPolicy of its namespace selects pods that have a role."""
    return {**run_labels(run_uid), ROLE: role, EPOCH: str(epoch)}
