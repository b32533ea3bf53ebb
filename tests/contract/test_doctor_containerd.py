"""containerd's files as they lie on a node: where they are, what they import, what is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.cli import main
from holdfast.doctor.cdi import nodes_without_mode
from holdfast.doctor.containerd.checks import containerd_findings
from holdfast.doctor.containerd.facts import containerd_facts, read_configuration
from holdfast.doctor.finding import Finding, Level, Node, ProgramOutput
from holdfast.doctor.gvisor import gvisor_findings
from holdfast.doctor.programs import run
from holdfast.settings import Settings, convert
from waiting import wait_until

MAIN = "/etc/containerd/config.toml"
V2 = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{}]
runtime_type = "io.containerd.runc.v2"
"""
DOCKERS = 'disabled_plugins = ["cri"]'
"""What Docker's packages have in containerd's configuration."""
V3 = """version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{}]
runtime_type = "io.containerd.runc.v2"
"""


def node(root: Path, files: Mapping[str, str], **settings: object) -> Node:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return Node(settings=convert(settings) if settings else Settings(), root=root)


def with_version(at: Node, version: str) -> Node:
    said = ProgramOutput(text=f"containerd containerd.io {version} 0123abc\n")
    return replace(at, ask=lambda _: said)


def look(at: Node, version: str = "") -> dict[tuple[str, Level], Finding]:
    at = with_version(at, version) if version else at
    return {(each.check, each.level): each for each in containerd_findings(at)}


def bad(found: Mapping[tuple[str, Level], Finding]) -> set[str]:
    return {check for check, level in found if level is not Level.OK}


@pytest.mark.parametrize(
    "path",
    [
        MAIN,
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "/etc/k0s/containerd.toml",
        "/var/snap/microk8s/current/args/containerd.toml",
    ],
)
def test_the_configuration_is_found_where_each_distribution_has_it(
    path: str, tmp_path: Path
) -> None:
    found = look(node(tmp_path, {path: V2.format("runc")}))
    assert not bad(found)
    assert found["config", Level.OK].reason == f"read {path}"


def test_a_distributions_own_file_goes_before_that_of_etc(tmp_path: Path) -> None:
    k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    found = look(node(tmp_path, {MAIN: "[", k3s: V2.format("runc")}))
    assert not bad(found)


def test_bad_toml_is_a_failure_that_names_the_file_and_the_line(tmp_path: Path) -> None:
    found = look(node(tmp_path, {MAIN: 'version = 2\n\n[plugins."io\n'}))
    reason = found["config", Level.FAIL].reason
    assert f"cannot read {MAIN}: it is not TOML" in reason
    assert "line 3" in reason
    assert found["config", Level.FAIL].remedy


def test_a_file_that_is_not_utf_8_or_is_a_folder_is_a_failure_too(tmp_path: Path) -> None:
    at = node(tmp_path, {MAIN: 'imports = ["a.toml", "b.toml"]'})
    (tmp_path / "etc/containerd/a.toml").write_bytes(b"x = '\xff'")
    (tmp_path / "etc/containerd/b.toml").mkdir()
    reasons = [each.reason for each in containerd_findings(at) if each.level is Level.FAIL]
    assert any("/etc/containerd/a.toml: it is not UTF-8" in reason for reason in reasons)
    assert any("/etc/containerd/b.toml" in reason for reason in reasons)


@pytest.mark.parametrize("pattern", ["/opt/**/a.toml", "/opt/**.toml", "/opt/x/**"])
def test_two_stars_in_an_import_are_one_to_containerd(pattern: str, tmp_path: Path) -> None:
    """They would be a walk through all folders to Python, or an error."""
    files = {MAIN: f'version = 3\nimports = ["{pattern}"]\n', "/opt/b.toml": ""}
    files |= dict.fromkeys(("/opt/x/a.toml", "/opt/x/y/a.toml", "/opt/a.toml"), "")
    found = read_configuration(node(tmp_path, files), major=2)
    one = {str(path) for path in map(Path, files) if path.match(pattern.replace("**", "*"))}
    assert {each.path for each in found.files} == {MAIN, *one}


def test_imports_are_read_in_containerds_order_and_patterns_sorted(
    tmp_path: Path,
) -> None:
    files = {
        MAIN: 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml", "/opt/x.toml"]\n',
        "/etc/containerd/conf.d/20.toml": V3.format("b"),
        "/etc/containerd/conf.d/10.toml": 'version = 3\nimports = ["/etc/containerd/more/*/last.toml"]\n',
        "/etc/containerd/conf.d/ignored.conf": "[",
        "/etc/containerd/more/a/last.toml": V3.format("c"),
        "/opt/x.toml": V3.format("runc"),
    }
    found = look(node(tmp_path, files))
    assert found["config", Level.OK].reason == (
        "read /etc/containerd/config.toml, /etc/containerd/conf.d/10.toml, "
        "/etc/containerd/conf.d/20.toml, /opt/x.toml, /etc/containerd/more/a/last.toml"
    )
    assert "one of b, runc, c" in found["handlers", Level.OK].reason


@pytest.mark.parametrize(
    ("version", "level", "read"),
    [("1.7.27", Level.FAIL, False), ("2.0.1", Level.WARN, True), ("", Level.WARN, True)],
)
def test_a_pattern_without_a_folder_is_looked_for_elsewhere_by_containerd_1_x(
    version: str, level: Level, read: bool, tmp_path: Path
) -> None:
    files = {
        MAIN: 'version = 2\nimports = ["conf.d/*.toml"]\n',
        "/etc/containerd/conf.d/1.toml": V2.format("kata"),
        "/usr/bin/containerd": "",
    }
    found = look(node(tmp_path, files), version)
    assert "conf.d/*.toml among the imports has no leading /" in found["imports", level].reason
    assert ("kata" in found["handlers", Level.OK].reason) == read


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    files = {MAIN: 'imports = ["b.toml"]', "/etc/containerd/b.toml": 'imports = ["config.toml"]'}
    assert not bad(look(node(tmp_path, files)))


def test_an_import_by_name_that_is_missing_is_a_failure_and_an_empty_pattern_is_none(
    tmp_path: Path,
) -> None:
    found = look(node(tmp_path, {MAIN: 'version = 3\nimports = ["/x/*.toml", "/x/y.toml"]'}))
    assert "cannot read /x/y.toml: there is no such file" in found["config", Level.FAIL].reason
    assert bad(found) == {"config"}


def test_a_drop_in_that_nobody_imports_is_named(tmp_path: Path) -> None:
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    found = look(node(tmp_path, {MAIN: V2.format("runc"), drop_in: V2.format("nvidia")}))
    assert drop_in in found["imports", Level.WARN].reason
    assert "imports = " in found["imports", Level.WARN].remedy


@pytest.mark.parametrize(
    ("version", "level"), [("1.7.27", Level.FAIL), ("", Level.WARN), ("2.1.0", None)]
)
def test_runtimes_that_a_drop_in_makes_containerd_1_x_forget_are_named(
    version: str, level: Level | None, tmp_path: Path
) -> None:
    files = {
        MAIN: V2.format("runsc") + 'runtime_path = ""\n',
        "/etc/containerd/conf.d/99-nvidia.toml": V2.format("runc"),
        "/usr/bin/containerd": "",
    }
    files[MAIN] = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + files[MAIN]
    found = look(node(tmp_path, files), version)
    if level is None:
        assert not bad(found)
    else:
        assert "runtimes.runsc of an earlier one is lost" in found["imports", level].reason


@pytest.mark.parametrize(
    ("version", "text", "level"),
    [
        pytest.param("1.7.27", V3, Level.FAIL, id="1.x cannot read version 3"),
        pytest.param("2.0.1", V3.replace("3", "2", 1), None, id="2.x takes the new table anyway"),
        pytest.param("", V3.replace("3", "2", 1), Level.WARN, id="it depends on containerd"),
        pytest.param("1.7.1", V3.replace("3", "2", 1), Level.FAIL, id="1.x ignores the new table"),
        pytest.param("", V2.replace("2", "3", 1), Level.FAIL, id="2.x ignores the old table"),
    ],
)
def test_a_table_must_have_the_prefix_of_its_files_version(
    version: str, text: str, level: Level | None, tmp_path: Path
) -> None:
    files = {MAIN: text.format("runc"), "/usr/bin/containerd": ""}
    found = look(node(tmp_path, files), version)
    assert {check for check in bad(found) if check == "tables"} == ({"tables"} if level else set())
    if level is not None:
        assert found["tables", level].remedy


def test_a_drop_in_of_a_newer_version_than_the_first_file_is_named(tmp_path: Path) -> None:
    files = {
        MAIN: 'imports = ["conf.d/*.toml"]\n' + V2.format("runc"),
        "/etc/containerd/conf.d/99-nvidia.toml": V3.format("nvidia"),
    }
    found = look(node(tmp_path, files))
    assert "99-nvidia.toml has version = 3" in found["tables", Level.WARN].reason


def test_a_containerd_whose_part_for_kubernetes_is_off_is_a_failure(tmp_path: Path) -> None:
    found = look(node(tmp_path, {MAIN: 'disabled_plugins = ["cri"]\n'}))
    assert "disabled_plugins" in found["tables", Level.FAIL].reason


@pytest.mark.parametrize(
    ("version", "text", "fails"),
    [
        ("1.7.27", V2.format("nvidia"), True),
        ("2.0.1", V3.format("nvidia"), False),
        (
            "2.0.1",
            V3.format("a")
            + '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "b"\n',
            True,
        ),
        ("1.7.27", "version = 2\n", False),
    ],
)
def test_the_default_runtime_must_have_a_table_unless_containerd_adds_it(
    version: str, text: str, fails: bool, tmp_path: Path
) -> None:
    at = node(tmp_path, {MAIN: text, "/usr/bin/containerd": ""})
    for handlers in ((), ("runc",)):
        found = look(replace(at, runtime_handlers=handlers), version)
        assert (("handlers", Level.FAIL) in found) == fails


CDI_ON = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'


@pytest.mark.parametrize(
    ("version", "text", "wanted", "level"),
    [
        pytest.param("1.7.27", "version = 2\n", False, Level.OK, id="off, and nobody needs it"),
        pytest.param("1.7.27", "version = 2\n", True, Level.FAIL, id="off by default in 1.x"),
        pytest.param("", "version = 2\n", True, Level.WARN, id="it depends on containerd"),
        pytest.param("", "version = 2\n", False, Level.OK, id="whatever it is, nobody needs it"),
        pytest.param("1.7.27", CDI_ON, True, Level.OK, id="turned on"),
        pytest.param("2.1.0", "version = 3\n", True, Level.OK, id="on by default in 2.x"),
        pytest.param("2.1.0", CDI_ON.replace("true", "false"), True, Level.FAIL, id="turned off"),
        pytest.param("1.7.27", CDI_ON + 'cdi_spec_dirs = ["/etc/cdi"]\n', True, Level.FAIL, id="our folder is not read"),
        pytest.param("1.7.27", CDI_ON + 'cdi_spec_dirs = ["/run/cdi/"]\n', True, Level.OK, id="/run and /var/run are one"),
    ],
)  # fmt: skip
def test_cdi_must_be_on_where_devices_are_handed_over_by_name(
    version: str, text: str, wanted: bool, level: Level, tmp_path: Path
) -> None:
    settings = {"deviceListStrategy": "cdi"} if wanted else {}
    at = node(tmp_path, {MAIN: text, "/usr/bin/containerd": ""}, **settings)
    assert ("cdi", level) in look(at, version)


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
def test_gpus_that_are_handed_over_by_name_need_cdi_as_well(strategy: str, tmp_path: Path) -> None:
    files = {MAIN: "version = 2\n", "/usr/bin/containerd": ""}
    at = node(tmp_path, files, gpu={"deviceListStrategy": [strategy]})
    assert ("cdi", Level.FAIL) in look(at, "1.7.27")


@pytest.mark.parametrize("api", ["device-plugin", "dra"])
def test_claims_need_cdi_whatever_the_strategy_is(api: str, tmp_path: Path) -> None:
    files = {MAIN: "version = 2\n", "/usr/bin/containerd": ""}
    found = look(node(tmp_path, files, tpu={"api": api}), "1.7.27")

    assert (("cdi", Level.FAIL) in found) == (api == "dra")
    if api == "dra":
        assert (
            "a pod's claim needs it: pods would get no devices" in found["cdi", Level.FAIL].reason
        )


def test_a_binary_that_is_not_on_the_node_is_named(tmp_path: Path) -> None:
    text = V2.format("nvidia") + (
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
        'BinaryName = "{}"\n'
    )
    program = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    at = node(tmp_path, {MAIN: text.replace("{}", program)})
    assert program in look(at)["binaries", Level.FAIL].reason
    assert not bad(look(node(tmp_path, {program: "#!/bin/sh\n"})))
    node(tmp_path, {MAIN: text.replace("{}", "crun")})
    assert "/usr/local/sbin" in look(at)["binaries", Level.FAIL].reason
    assert not bad(look(node(tmp_path, {"/usr/bin/crun": "#!/bin/sh\n"})))


@pytest.mark.parametrize("beside", [{}, {MAIN: DOCKERS, "/usr/bin/containerd": ""}])
def test_a_node_of_another_runtime_has_nothing_to_mend(
    beside: dict[str, str], tmp_path: Path
) -> None:
    found = look(node(tmp_path, {"/etc/crio/crio.conf": "", **beside}), "1.7.27")
    assert not bad(found)
    assert "CRI-O runs this node's pods, and its configuration is not read" in (
        found["config", Level.OK].reason
    )


def test_what_would_have_to_be_known_of_another_runtime_is_named(tmp_path: Path) -> None:
    at = node(tmp_path, {"/etc/crio/crio.conf": ""}, deviceListStrategy="cdi")
    found = look(replace(at, runtime_handlers=("runsc",)))["config", Level.WARN]
    assert (
        "whether it has the handler runsc and looks up devices by CDI name in /var" in found.reason
    )
    assert "`crio config`" in found.remedy
    files = {"/run/cri-dockerd.sock": "", MAIN: DOCKERS, "/usr/bin/containerd": ""}
    at = node(tmp_path / "docker", files, deviceListStrategy="cdi")
    assert "the configuration of cri-dockerd" in look(at)["config", Level.WARN].remedy


@pytest.mark.parametrize("opening", ["x = " + "[" * 100_000, "x = " + "{ y = " * 100_000])
def test_a_file_that_is_nested_without_end_is_named_as_such(opening: str, tmp_path: Path) -> None:
    found = look(node(tmp_path, {MAIN: opening}))["config", Level.FAIL]
    assert f"cannot read {MAIN}: it is nested too deep" in found.reason


def test_cdi_specs_that_are_nested_without_end_are_passed_over(tmp_path: Path) -> None:
    files = {"/etc/cdi/a.json": "[" * 100_000, "/etc/cdi/b.yaml": "[" * 5_000}
    assert nodes_without_mode(node(tmp_path, files), ("/etc/cdi",)) == ()


def test_without_a_trace_of_any_runtime_that_is_said(tmp_path: Path) -> None:
    found = look(node(tmp_path, {}))
    assert found.keys() == {("config", Level.WARN)}
    assert "--root" in found["config", Level.WARN].remedy


def test_a_program_without_a_configuration_goes_by_its_defaults(tmp_path: Path) -> None:
    found = look(node(tmp_path, {"/usr/bin/containerd": ""}), "2.1.0")
    assert not bad(found)
    assert "there is no /etc/containerd/config.toml" in found["config", Level.OK].reason
    assert "one of runc" in found["handlers", Level.OK].reason


def process(root: Path, pid: int, *arguments: str, path: str) -> None:
    """Show a containerd in the node's /proc, as the kernel does."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    fields = ["S", "1", *["0"] * 5, *["0"] * 12, "100", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (containerd) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"".join(f"{each}\0".encode() for each in arguments))
    (folder / "environ").write_bytes(f"HOME=/root\0PATH={path}\0".encode())
    (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (folder / "exe").symlink_to("/opt/c/containerd")


def test_of_the_variables_of_a_process_only_the_beginning_is_read(tmp_path: Path) -> None:
    process(tmp_path, 41, "containerd", path="/odd/bin")
    variables = tmp_path / "proc/41/environ"
    at = node(tmp_path, {MAIN: V2.format("runc")})
    assert "/odd/bin" in containerd_facts(at).folders

    variables.write_bytes(b"LONG=" + b"x" * (1 << 20) + b"\0" + variables.read_bytes())
    assert "/odd/bin" not in containerd_facts(at).folders


@pytest.mark.parametrize("flag", [("--config=/opt/c/c.toml",), ("-c", "/opt/c/c.toml")])
def test_the_process_tells_which_file_it_reads_and_where_it_looks_for_programs(
    flag: tuple[str, ...], tmp_path: Path
) -> None:
    text = V2.format("x") + (
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.x.options]\nBinaryName = "xrun"\n'
    )
    at = node(tmp_path, {MAIN: "[", "/opt/c/c.toml": text})
    process(tmp_path, 41, "/usr/bin/containerd", path="/usr/bin")
    process(
        tmp_path,
        42,
        "containerd",
        "-c",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        path="/odd/bin:relative",
    )
    rke2 = node(
        tmp_path, {"/var/lib/rancher/rke2/agent/etc/containerd/config.toml": V2.format("runc")}
    )
    assert not bad(look(rke2)), "a distribution's own goes before Docker's"
    (tmp_path / "proc/42/stat").unlink()
    (tmp_path / "proc/41/cmdline").write_bytes(
        b"".join(f"{each}\0".encode() for each in ("containerd", *flag))
    )
    found = look(at)
    assert found["config", Level.OK].reason == "read /opt/c/c.toml"
    assert "/usr/bin, /opt/c, /usr/local/sbin" in found["binaries", Level.FAIL].reason


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_containerd_with_other_mounts_is_not_judged_by_the_files_that_we_see(
    elsewhere: bool, tmp_path: Path
) -> None:
    process(tmp_path, 41, "containerd", "--config", f"{tmp_path}/c.toml", path="/usr/bin")
    (tmp_path / "proc/41/ns").mkdir()
    own = Path("/proc/self/ns/mnt").readlink()
    (tmp_path / "proc/41/ns/mnt").symlink_to("mnt:[1]" if elsewhere else own)
    (tmp_path / "c.toml").write_text("[")
    live = Node(settings=convert({"host": {"proc": f"{tmp_path}/proc"}}))
    live = with_version(live, "1.7.27")
    found = look(live)
    gvisor = {each.check: each for each in gvisor_findings(live)}
    if elsewhere:
        assert found.keys() == {("config", Level.WARN)}
        assert "--root /proc/41/root" in found["config", Level.WARN].remedy
        assert gvisor["installed"].level is Level.WARN
        assert "--root /proc/41/root" in gvisor["installed"].remedy
    else:
        assert f"cannot read {tmp_path}/c.toml" in found["config", Level.FAIL].reason


def test_a_containerd_in_a_container_hides_none_of_the_nodes_own(tmp_path: Path) -> None:
    k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    own = str(Path("/proc/self/ns/mnt").readlink())
    for pid, mounts, config in ((41, "mnt:[1]", k3s), (42, own, f"{tmp_path}/c.toml")):
        process(tmp_path, pid, "containerd", "--config", config, path="/usr/bin")
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to(mounts)
    (tmp_path / "c.toml").write_text("[")
    live = Node(settings=convert({"host": {"proc": f"{tmp_path}/proc"}}))

    found = look(live, "1.7.27")

    assert f"cannot read {tmp_path}/c.toml" in found["config", Level.FAIL].reason


@pytest.mark.parametrize("effective", [65534, 0], ids=["another's", "another's setuid program"])
def test_no_program_is_run_that_another_user_can_have_named(effective: int, tmp_path: Path) -> None:
    process(tmp_path, 41, "containerd", path=f"{tmp_path}/bin")
    (tmp_path / "proc/41/status").write_text(f"Uid:\t65534\t{effective}\t0\t0\n")
    (tmp_path / "proc/41/ns").mkdir()
    (tmp_path / "proc/41/ns/mnt").symlink_to(Path("/proc/self/ns/mnt").readlink())
    program = tmp_path / "bin/containerd"
    program.parent.mkdir()
    program.touch(mode=0o755)
    live = Node(settings=convert({"host": {"proc": f"{tmp_path}/proc"}}))

    assert containerd_facts(with_version(live, "1.7.27")).program != str(program)


def test_a_containerd_that_does_not_tell_its_version_is_asked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process(tmp_path, 41, "containerd", "--config", f"{tmp_path}/c.toml", path=str(tmp_path))
    (tmp_path / "proc/41/ns").mkdir()
    (tmp_path / "proc/41/ns/mnt").symlink_to(Path("/proc/self/ns/mnt").readlink())
    (tmp_path / "c.toml").write_text(V2.format("runc"))
    (tmp_path / "containerd").write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\nsleep 1000\n")
    (tmp_path / "containerd").chmod(0o755)
    main(["doctor", "-o", "json", "--set", f"host.proc={tmp_path}/proc"])
    found = json.loads(capsys.readouterr().out)["findings"]
    (told,) = (each for each in found if (each["area"], each["check"]) == ("containerd", "config"))
    assert told["level"] == "OK"
    assert "containerd's version is unknown: " in told["reason"]
    assert "gave no answer within 2 s" in told["reason"]
    assert any(each["area"] == "gvisor" for each in found)
    assert (tmp_path / "asked").read_text() == "\n"


def _stat(pid: int) -> str:
    """Return the state of a process as ps shows it: Z if nobody has waited for it, or nothing."""
    ps = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip()


def test_a_program_that_does_not_answer_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "hangs"
    script.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {pid}\nwait\n")
    script.chmod(0o755)
    answer = run([str(script), "--version"], patience=2.0)
    assert "gave no answer within 2 s" in answer.problem
    if pid.exists():
        child = int(pid.read_text())
        # Who is killed closes its files, on whose end `run` waits, a moment before it is dead.
        wait_until(lambda: _stat(child)[:1] in {"", "Z"}, what="the child to be dead")


@pytest.mark.parametrize(
    ("code", "problem"),
    [("print('1.0')", ""), ("import sys; sys.exit('no')", "ended with 1: no")],
)
def test_what_a_program_says_is_its_answer_and_an_error_is_none(code: str, problem: str) -> None:
    answer = run([sys.executable, "-I", "-c", code], patience=60.0)
    assert answer.text == ("" if problem else "1.0\n")
    assert answer.problem.endswith(problem)


def test_a_program_that_cannot_be_run_is_a_problem_and_no_error(tmp_path: Path) -> None:
    assert "cannot run" in run([os.fspath(tmp_path / "none")]).problem
