"""The command `schema`."""

import argparse
import json

from vidssl.engine import config_schema


def run(parsed: argparse.Namespace) -> None:
    """Print the JSON schema of config files."""
    print(json.dumps(config_schema.schema().model_json_schema(), indent=2))
