"""Reads the host's /etc/tpu/tpu-env."""

from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.model.tpu.env_file import TpuEnvFile, parse_tpu_env

_MOST_BYTES = 64 * 1024


def tpu_env_path(root: HostRoot) -> Path:
    """Return where the Cloud TPU runtime leaves the file."""
    return root.etc / "tpu" / "tpu-env"


def read_tpu_env(path: Path) -> TpuEnvFile:
    """Return what the file says. A host without it has nothing to say, which is no problem."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return TpuEnvFile()
    except OSError as error:
        reason = error.strerror or str(error)
        return TpuEnvFile(problems=(f"cannot read {path}: {reason}",))
    return parse_tpu_env(content.decode(errors="replace"))
