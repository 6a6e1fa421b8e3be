"""The JSON schema of config files, for editors that complete YAML."""

import json
from typing import Any

from vidssl.engine.config_schema import schema as schema_of_runs


class Schema(dict[str, Any]):
    """A JSON schema; its text is JSON too."""

    def __str__(self) -> str:
        return json.dumps(self, indent=2)


def schema() -> Schema:
    """Print the JSON schema of config files, for editors that complete YAML."""
    return Schema(schema_of_runs().model_json_schema())
