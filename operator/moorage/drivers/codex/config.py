"""Codex's own configuration: one provider, which is the run's model door."""

from __future__ import annotations

import json

PROVIDER = "moorage"
KEY_VARIABLE = "MOORAGE_MODEL_KEY"


def config(model: str, relay_url: str) -> str:
    """The text of config.toml. TOML's basic strings are JSON's, but for DEL, which no model's name and no URL has."""
    return f"""\
# Written anew at each start.
model = {json.dumps(model)}
model_provider = "{PROVIDER}"
check_for_update_on_startup = false
allow_login_shell = false  # a login shell forgets the image's PATH

[model_providers.{PROVIDER}]
name = "{PROVIDER}"
base_url = {json.dumps(f"{relay_url}/model/v1")}
env_key = "{KEY_VARIABLE}"
wire_api = "responses"

[analytics]
enabled = false
"""
