"""Writes the Python code of the wire contracts: `python proto/generate.py [SOURCE_ROOT]`."""

import sys
import sysconfig
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
SOURCE_ROOT = PROTO.parent / "daemon"

# Every one of kubelet's files is called api.proto, and protobuf keys descriptors by path. Under
# this prefix the paths differ, and the generated imports are absolute and right as they are.
PREFIX = Path("holdfast/_pb")


def generate(source_root: Path) -> None:
    """Write `holdfast/_pb` below *source_root*, which exists."""
    contracts = sorted(path.relative_to(PROTO) for path in PROTO.rglob("*.proto"))
    scripts = Path(sysconfig.get_path("scripts"))
    arguments = [
        "protoc",
        *(
            f"--plugin={name}={scripts / name}"
            for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
        ),
        f"-I{PREFIX}={PROTO}",
        f"--python_out={source_root}",
        f"--grpc_python_out={source_root}",
        f"--mypy_out={source_root}",
        f"--mypy_grpc_out=only_async:{source_root}",
        *(str(PREFIX / contract) for contract in contracts),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("cannot generate the wire contracts: protoc says why above")

    packages = {PREFIX}
    for contract in contracts:
        packages |= {PREFIX / parent for parent in contract.parents}
    for package in packages:
        words = f'"""Generated from proto/{package.relative_to(PREFIX)}; see proto/README.md."""\n'
        text = words.replace("proto/.;", "proto/;")
        (source_root / package / "__init__.py").write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT)
