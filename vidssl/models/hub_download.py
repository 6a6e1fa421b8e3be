"""Networks on the Hugging Face Hub, as `vidssl export --to folder` writes them."""

import re
from pathlib import Path

from vidssl.errors import CheckpointError

_NAME = re.compile(r"(?P<prefix>hf-hub:)?(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
_FILE = re.compile(r"\.(pt|pth|pyth|ckpt|pkl|tar|bin|onnx|pt2|safetensors)$")


def download(name: str, file: str) -> Path | None:
    """Download a file of `hf-hub:OWNER/NAME[@REVISION]` into the hub's cache; None if `name` is not of this form.

    Without the prefix a name that can be a mistyped path is not of this form: OWNER is a folder, or NAME has a suffix
    of weights.

    Raises:
        CheckpointError: huggingface_hub is not installed, or the file cannot be downloaded.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    repo, revision = found["repo"], found["revision"]
    if not found["prefix"] and (Path(repo).parent.exists() or _FILE.search(name)):
        return None
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"there is no file {name}; to download the network of this name from the Hugging Face Hub: pip install "
            "huggingface_hub"
        ) from None
    try:
        # Nothing but these files: what else is there, such as code, is never loaded.
        folder = snapshot_download(repo, revision=revision, allow_patterns=[file, "config.json"])
    except Exception as error:  # of several libraries
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"there is no file {name}, and {repo} cannot be downloaded from the Hugging Face Hub ({reason}): correct "
            "the path, or log in with `hf auth login` if the network is private"
        ) from None
    path = Path(folder) / file
    if not path.is_file():
        raise CheckpointError(f"{repo} on the Hugging Face Hub has no {file}: vidssl export --to folder writes it")
    return path
