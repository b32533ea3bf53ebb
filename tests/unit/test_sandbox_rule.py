"""Which process belongs to a sandbox: by facts that no program shows by accident."""

import pytest

from holdfast.model.use.holders import Program, Sandbox, sandbox_role

_ROOT = "--root=/run/containerd/runsc/k8s.io"
_SENTRY = Program(command="exe", arguments=("runsc-sandbox", _ROOT, "boot", "--bundle=/b", "id"))
_GOFER = Program(command="exe", arguments=("runsc-gofer", _ROOT, "gofer", "--bundle=/b"))
_SHIM = Program(command="containerd-shim", arguments=("/usr/bin/containerd-shim-runsc-v1",))
_STUB = Program(command="exe")
_SHELL = Program(command="sh", arguments=("sh", "-c", "runsc boot"))


@pytest.mark.parametrize(
    ("program", "ancestors", "role"),
    [
        (_SENTRY, (_SHIM,), Sandbox.SENTRY),
        (_SENTRY, (), Sandbox.SENTRY),
        (Program(command="runsc-sandbox", arguments=_SENTRY.arguments), (), Sandbox.SENTRY),
        (
            Program(command="runsc", arguments=("/usr/bin/runsc", _ROOT, "boot", "id")),
            (),
            Sandbox.SENTRY,
        ),
        (_GOFER, (_SHIM,), Sandbox.GOFER),
        (_STUB, (_SENTRY, _SHIM), Sandbox.STUB),
        (_STUB, (_STUB, _SENTRY, _SHIM), Sandbox.STUB),
        (Program(command="qemu-system-x86"), (), Sandbox.MACHINE),
        # None of these is one, whatever single fact it shares with one.
        (_STUB, (), None),
        (_STUB, (_SHIM,), None),
        (_STUB, (_GOFER, _SHIM), None),
        (Program(command="exe", arguments=("/proc/self/exe", "boot")), (), None),
        (Program(command="python", arguments=_SENTRY.arguments), (), None),
        (Program(command="runsc", arguments=("runsc", _ROOT, "list")), (), None),
        (Program(command="runsc-sandbox"), (), None),
        (Program(command="exe", arguments=("", "boot")), (), None),
        (_SHELL, (), None),
        (_SHIM, (), None),
        (_STUB, (_SHELL,), None),
    ],
)
def test_a_sandbox_is_known_by_its_name_its_subcommand_and_its_parents(
    program: Program, ancestors: tuple[Program, ...], role: Sandbox | None
) -> None:
    assert sandbox_role(program, ancestors) is role


@pytest.mark.parametrize(
    "program",
    [
        *("qemu-kvm", "qemu-system-x86_64", "qemu-system-aarch64", "qemu-system-s390x"),
        *("qemu-system-ppc64", "qemu-system-riscv64", "qemu-system-loongarch64"),
        *("cloud-hypervisor", "firecracker", "dragonball", "stratovirt", "crosvm", "lkvm"),
        "acrn-dm",
    ],
)
def test_the_monitors_of_virtual_machines_are_known_by_name(program: str) -> None:
    """The kernel cuts a name to 15 characters."""
    assert sandbox_role(Program(command=program[:15])) is Sandbox.MACHINE
