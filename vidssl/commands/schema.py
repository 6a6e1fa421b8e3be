"""The command `schema`."""

import argparse
import json
from collections.abc import Sequence


def schema(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Print the JSON schema of config files, for editors that complete YAML."""
    argparse.ArgumentParser(prog=prog, description=schema.__doc__).parse_args(arguments)
    from vidssl.engine.config_schema import schema as run_schema

    print(json.dumps(run_schema().model_json_schema(), indent=2))
