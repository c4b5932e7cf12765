"""What is wrong with a process's surroundings is told in one line, whichever process it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config

from moorage.cli.ports import SettingsRefused


@contextlib.contextmanager
def settings_read() -> Iterator[None]:
    """Raises SettingsRefused for a variable that is missing (KeyError) or makes no sense (ValueError)."""
    try:
        yield
    except KeyError as error:
        raise SettingsRefused(f"{error.args[0]} is not set") from None
    except ValueError as error:
        raise SettingsRefused(f"a MOORAGE_* variable makes no sense: {error}") from None


def in_cluster() -> Configuration:
    """How a pod speaks to its API server. Raises SettingsRefused outside of one."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise SettingsRefused(f"this is no pod of a cluster: {error}") from None
    return configuration
