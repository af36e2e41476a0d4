# A certificate for localhost that is its own authority, made when it is needed: none is stored that could expire.

"""Make certificates for servers in tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> Path:
    """Make a certificate for localhost in *folder* and return its path; its key is beside it, in key.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


def make_server_context(certificate: Path) -> ssl.SSLContext:
    """Return the server's side of TLS with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context
