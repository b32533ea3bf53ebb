"""Reading /etc/tpu/tpu-env from a host."""

from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.model.tpu.env import TpuEnvFile
from holdfast.vendors.tpu.adapter import read_tpu_env, tpu_env_path


def test_a_host_without_the_file_has_nothing_to_say(tmp_path: Path) -> None:
    assert read_tpu_env(tpu_env_path(HostRoot.under(tmp_path))) == TpuEnvFile()


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tpu_env_path(HostRoot.under(tmp_path))
    path.parent.mkdir(parents=True)
    path.write_text("TOPOLOGY: '2x4'\n")
    assert read_tpu_env(path).facts.topology == "2x4"


def test_a_file_that_is_a_folder_or_no_text_is_a_named_problem(tmp_path: Path) -> None:
    (problem,) = read_tpu_env(tmp_path).problems
    assert str(tmp_path) in problem
    odd = tmp_path / "tpu-env"
    odd.write_bytes(b"\xff\xfe\x00" * 100_000)
    assert read_tpu_env(odd).problems
