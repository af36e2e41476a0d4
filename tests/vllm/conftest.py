# One real vLLM server for all tests of this folder: one that runs already (LOADSHAPE_VLLM_URL, the base URL with /v1),
# or one that is started from the folder that install.py made (LOADSHAPE_VLLM). Without either the tests are skipped.

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 300.0
STOP_S = 30.0
FLAGS = (
    *("--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "64", "--block-size", "32"),
    *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache, /server_info
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the base URL of a vLLM server that nobody else uses."""
    url, folder = os.environ.get("LOADSHAPE_VLLM_URL"), os.environ.get("LOADSHAPE_VLLM")
    if url:
        yield url
    elif folder:
        with serving(Path(folder).absolute(), tmp_path_factory.mktemp("vllm") / "server.txt") as started:
            yield started
    else:
        pytest.skip("needs a vLLM server: make test-vllm, or LOADSHAPE_VLLM_URL=http://127.0.0.1:8000/v1")


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [folder / "venv" / "bin" / "vllm", "serve", folder / "model", "--served-model-name", "tiny"]
    path = f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *FLAGS],
            stdout=output, stderr=output, env=os.environ | ENVIRONMENT | {"PATH": path}, start_new_session=True,
        )  # fmt: skip
    try:
        await_health(port, process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_health(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(1.0)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    pytest.fail(f"vLLM did not come up within {START_S:.0f} s:\n{tail}")
