"""What of a plan goes side by side: never what a scheduler must see in its order."""

from __future__ import annotations

from moorage.api.wire import Role
from moorage.controller.apply import grouped
from moorage.core.run import actions as a

RISE, VOLUME, START = a.RaiseEpoch(1, 1, "Admitted"), a.EnsureVolume(), a.StartSandbox(1, Role.RUNNER)


def test_a_volume_is_created_beside_the_epochs_rise_and_before_its_sandbox() -> None:
    assert grouped([RISE, VOLUME, START]) == [[RISE, VOLUME], [START]]
    assert grouped([VOLUME, START]) == [[VOLUME], [START]]
