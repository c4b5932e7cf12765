"""All our drivers of somebody else's programs, put through the test kit that we give to others."""

import pytest
from tests.contract.posing_agents import SUBJECTS

from moorage.testing.drivers import DriverContract

pytestmark = pytest.mark.timeout(240)  # real processes; the suite's own limit is below that


class TestCommand(DriverContract):
    subject = SUBJECTS["command"]


class TestCodex(DriverContract):
    subject = SUBJECTS["codex"]


class TestPi(DriverContract):
    subject = SUBJECTS["pi"]


class TestClaudeCode(DriverContract):
    subject = SUBJECTS["claude-code"]


class TestAcp(DriverContract):
    subject = SUBJECTS["acp"]
