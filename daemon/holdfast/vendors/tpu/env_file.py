"""Reads the host's /etc/tpu/tpu-env."""

from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes
from holdfast.host.root import HostRoot
from holdfast.model.tpu.env_file import TpuEnvFile, parse_tpu_env

_MOST_BYTES = 64 * 1024


def tpu_env_path(root: HostRoot) -> Path:
    """Return where the Cloud TPU runtime leaves the file."""
    return root.etc / "tpu" / "tpu-env"


def read_tpu_env(path: Path) -> TpuEnvFile:
    """Return what the file says; nothing if the host does not have it, which is no problem."""
    try:
        content = read_bytes(path, most=_MOST_BYTES)
    except HostError as error:
        return TpuEnvFile(problems=(str(error),))
    return TpuEnvFile() if content is None else parse_tpu_env(content.decode(errors="replace"))
