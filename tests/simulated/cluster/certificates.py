"""An authority and the certificate of one server, made by the openssl command."""

import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from holdfast.errors import HostError

_DAYS = "2"


class Certificates(Struct, frozen=True, kw_only=True):
    """The files of an authority and of one server that it vouches for."""

    authority: Path
    certificate: Path
    key: Path


def certificates(folder: Path) -> Certificates:
    """Make an authority in *folder* and a certificate of the server at 127.0.0.1.

    Raise HostError where there is no openssl.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.crt", folder / "ca.key"
    certificate, key = folder / "server.crt", folder / "server.key"
    signs = ("basicConstraints=critical,CA:TRUE",)  # no key usage: no more than EKS and MicroK8s
    serves = ("basicConstraints=critical,CA:FALSE", "subjectAltName=IP:127.0.0.1")
    _request("/CN=kubernetes", authority, authority_key, signs)
    by = ("-CA", str(authority), "-CAkey", str(authority_key))
    _request("/CN=kube-apiserver", certificate, key, serves, *by)
    return Certificates(authority=authority, certificate=certificate, key=key)


def _request(
    subject: str, certificate: Path, key: Path, extensions: tuple[str, ...], *more: str
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise HostError("cannot make certificates: there is no openssl on the PATH; install it")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", str(key), "-out", str(certificate))
    added = [part for each in extensions for part in ("-addext", each)]
    rest = ("-x509", "-subj", subject, "-days", _DAYS, *added)
    made = subprocess.run(
        [openssl, "req", *curve, *files, *rest, *more], check=False, capture_output=True, text=True
    )
    if made.returncode:
        raise HostError(f"cannot make certificates: {made.stderr.strip()}")
