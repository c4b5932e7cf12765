"""The substrate on Kubernetes: pods, volume claims and Leases, each adopted only by its owner's UID."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import Any, Final

from moorage.api import names
from moorage.api.meta import micro_time, parse_time
from moorage.api.wire import ResolvedRun
from moorage.clock import Clock
from moorage.core.run.observed import LeaseView, SandboxView
from moorage.points import Point, reached
from moorage.sandbox import spec as objects
from moorage.sandbox.kube import ApiUnavailable, Body, Exists, KubeApi, KubeError, Stale, path_of
from moorage.sandbox.podview import view_of
from moorage.sandbox.port import Children, Conflict, NameTaken, Refused, RunKey, Unavailable, Which
from moorage.sandbox.recent import Recent, version_of
from moorage.sandbox.spec import SandboxSettings
from moorage.sandbox.tenant import TenantObjects

LEASES: Final = "coordination.k8s.io/v1"
FORBIDDEN: Final = 403


class PodSubstrate:
    """What stands is read live, but for runs that were begun here in the last seconds (see moorage.sandbox.recent)."""

    def __init__(self, api: KubeApi, settings: SandboxSettings, tenants: TenantObjects, clock: Clock) -> None:
        self._api, self._settings, self._tenants, self._clock = api, settings, tenants, clock
        self._recent = Recent(clock.monotonic_ms)

    def heard(self, kind: str | None, child: Body, run_uid: str) -> bool:
        """The watch's word of a pod, or of a Lease that is DELETED; True where it is news."""
        if kind == "DELETED":
            self._recent.gone(run_uid)
            return True
        return self._recent.sandbox(run_uid, view_of(child), version_of(child))

    async def observe(self, run: RunKey, *, fresh: bool = True) -> Children:
        """Pods by label, volume and Lease by name; only what the run itself owns counts."""
        return (None if fresh else self._recent.children(run)) or await self._observe(run)

    async def _observe(self, run: RunKey) -> Children:
        with _translated():
            pods, claim, lease = await asyncio.gather(
                self._api.items(path_of("v1", "pods", run.tenant), labels=_selector(run)),
                self._api.get(_claim(run)),
                self._api.get(_lease(run)),
            )
        mine = [pod for pod in pods if _owned(pod, run)]
        return Children(
            lease=lease_view(lease) if lease is not None and _owned(lease, run) else None,
            sandboxes=tuple(sorted((view_of(pod) for pod in mine), key=lambda v: (v.epoch, v.created_at or 0))),
            volume=claim is not None and _owned(claim, run) and not claim["metadata"].get("deletionTimestamp"),
        )

    async def raise_epoch(self, run: RunKey, epoch: int, holder: str) -> int:
        """Create the Lease, or raise the one that stands; meanwhile the namespace gets what sandboxes need."""
        with _translated():
            raised, _ = await asyncio.gather(self._raise(run, epoch, holder), self._tenants.ensure(run.tenant))
        return raised

    async def _raise(self, run: RunKey, epoch: int, holder: str) -> int:
        now = micro_time(self._clock.now_ms())
        if epoch == 1:  # most often there is none yet, and a create tells at once
            try:
                made = await self._api.create(_leases(run), objects.lease(run, epoch, holder, now))
            except Exists:
                pass
            else:
                self._recent.began(run, lease_view(made))
                return epoch
        self._recent.gone(run.uid)
        found = await self._api.get(_lease(run))
        if found is None:
            await self._api.create(_leases(run), objects.lease(run, epoch, holder, now))
            return epoch
        _demand_owned(found, run, f"Lease {names.lease_name(run.uid, run.name)}")
        at = lease_view(found).epoch
        if at >= epoch:
            return at
        await self._api.replace(_lease(run), objects.lease(run, epoch, holder, now, found))
        return epoch

    async def ensure_volume(self, run: RunKey, spec: ResolvedRun) -> None:
        """Create or adopt the claim; one that is still being removed is a Conflict: gather again."""
        reached(Point.VOLUME_BEFORE)
        with _translated():
            try:
                await self._api.create(
                    path_of("v1", "persistentvolumeclaims", run.tenant), objects.volume(run, spec, self._settings)
                )
            except Exists:
                found = await self._api.get(_claim(run))
                if found is None or found["metadata"].get("deletionTimestamp"):
                    raise Conflict("the old volume is still being removed") from None
                _demand_owned(found, run, f"PersistentVolumeClaim {names.volume_name(run.uid, run.name)}")
        reached(Point.VOLUME_AFTER)
        self._recent.volume(run)

    async def start(self, run: RunKey, spec: ResolvedRun, which: Which) -> SandboxView:
        """Create or adopt: the name follows from run, epoch, role and serial, so a second create finds the first."""
        body = objects.pod(run, spec, self._settings, which)
        name = body["metadata"]["name"]
        reached(Point.SANDBOX_BEFORE)
        with _translated():
            try:
                found = await self._create_pod(run.tenant, body)
            except Exists:
                there = await self._api.get(path_of("v1", "pods", run.tenant, name))
                if there is None:
                    raise Conflict(f"pod {name} went away meanwhile") from None
                _demand_owned(there, run, f"pod {name}")
                found = there
        reached(Point.SANDBOX_AFTER)
        self._recent.sandbox(run.uid, view_of(found), version_of(found))
        return view_of(found)

    async def _create_pod(self, tenant: str, body: Body) -> Body:
        """Once more where it is forbidden and the namespace was only believed to be in order."""
        path = path_of("v1", "pods", tenant)
        await self._tenants.ensure(tenant)
        try:
            return await self._api.create(path, body)
        except KubeError as e:
            if e.status != FORBIDDEN or not self._tenants.doubt(tenant):
                raise
        await self._tenants.ensure(tenant)
        return await self._api.create(path, body)

    async def stop(self, run: RunKey, name: str, uid: str, grace_ms: int, *, force: bool = False) -> None:
        """Delete with a precondition on the UID. Without `force` the pod stays until its processes are gone."""
        self._recent.gone(run.uid)
        grace_s = 0 if force else max(1, grace_ms // 1000)
        with _translated():
            await self._api.delete(path_of("v1", "pods", run.tenant, name), uid, grace_s=grace_s)

    async def release_lease(self, run: RunKey) -> None:
        """Delete it; its epoch lives on in the gateway's fence."""
        self._recent.gone(run.uid)
        with _translated():
            await self._delete(run, _lease(run))

    async def release_volume(self, run: RunKey) -> None:
        """Delete the claim; the volume's own policy decides on the disk."""
        self._recent.gone(run.uid)
        reached(Point.RELEASE_BEFORE)
        with _translated():
            await self._delete(run, _claim(run))
        reached(Point.RELEASE_AFTER)

    async def release(self, run: RunKey) -> None:
        """Delete pods, claim and Lease; also those that a delete with `--cascade=orphan` took our name from."""
        self._recent.gone(run.uid)
        with _translated():
            pods = await self._api.items(path_of("v1", "pods", run.tenant), labels=_selector(run))
        mine = [pod["metadata"] for pod in pods if _owned(pod, run) or _orphaned(pod, run)]
        await asyncio.gather(*(self.stop(run, meta["name"], meta["uid"], 0) for meta in mine))
        with _translated():
            await asyncio.gather(self._delete(run, _claim(run)), self._delete(run, _lease(run)))

    async def _delete(self, run: RunKey, path: str) -> None:
        found = await self._api.get(path)
        if found is not None and (_owned(found, run) or _orphaned(found, run)):
            await self._api.delete(path, found["metadata"]["uid"])


def lease_view(lease: Body) -> LeaseView:
    """Read a Lease of ours; an annotation that isn't a number counts as 0, so that it is put right."""
    meta, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    epoch = str((meta.get("annotations") or {}).get(names.EPOCH, "0"))
    renewed = spec.get("renewTime") or meta.get("creationTimestamp")
    return LeaseView(
        epoch=int(epoch) if epoch.isdecimal() else 0,
        holder=str(spec.get("holderIdentity") or ""),
        renewed_at=parse_time(renewed) if renewed else 0,
        duration_ms=int(spec.get("leaseDurationSeconds") or objects.LEASE_SECONDS) * 1000,
    )


def _claim(run: RunKey) -> str:
    return path_of("v1", "persistentvolumeclaims", run.tenant, names.volume_name(run.uid, run.name))


def _leases(run: RunKey) -> str:
    return path_of(LEASES, "leases", run.tenant)


def _lease(run: RunKey) -> str:
    return path_of(LEASES, "leases", run.tenant, names.lease_name(run.uid, run.name))


def _owned(found: Body, run: RunKey) -> bool:
    owners = found.get("metadata", {}).get("ownerReferences") or []
    return any(o.get("uid") == run.uid and o.get("controller") for o in owners)


def _selector(run: RunKey) -> str:
    return f"{names.RUN}={names.label_value(run.uid)}"


def _orphaned(found: Body, run: RunKey) -> bool:
    """It has no owner any more, and our label still says whose it was: good for a removal, never to be adopted."""
    meta = found.get("metadata", {})
    labelled = (meta.get("labels") or {}).get(names.RUN) == names.label_value(run.uid)
    return labelled and not meta.get("ownerReferences")


def _demand_owned(found: Body, run: RunKey, what: str) -> None:
    if not _owned(found, run):
        raise NameTaken(f"{what} in {run.tenant} belongs to somebody else: rename or remove it")


@contextmanager
def _translated() -> Any:
    """The API server's refusals in the port's words."""
    try:
        yield
    except ApiUnavailable as e:
        raise Unavailable(str(e)) from e
    except (Stale, Exists) as e:
        raise Conflict(str(e)) from e
    except KubeError as e:
        raise refusal(e) from e


def refusal(error: KubeError) -> Refused:
    """Typed: what a user or an administrator can do follows from the reason."""
    text = str(error)
    if error.status == 422:
        return Refused("SandboxInvalid", text, permanent=True)
    if "exceeded quota" in text:
        return Refused("QuotaExceeded", text)
    if "RuntimeClass" in text and "not found" in text:
        return Refused("RuntimeClassNotFound", text)
    if "being terminated" in text or error.status == 404:
        return Refused("NamespaceTerminating", text)
    if "violates PodSecurity" in text:
        return Refused("PodSecurity", text)
    return Refused("AdmissionRefused" if error.status == FORBIDDEN else "ApiRefused", text)
