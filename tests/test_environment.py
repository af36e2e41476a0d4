# Facts about a host, with programs that stand in for those that only some hosts have; and what is never a fact.

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from loadshape.environment import HIDDEN, describe_host, list_secrets, redact_secrets

SMI = """#!/bin/sh
case "$1" in
  topo) echo "GPU0 GPU1 NV18" ;;
  *) echo "NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB, 700.00 W, 5, Enabled"
     echo "NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB, 700.00 W, 5, Enabled" ;;
esac
"""
MAC = {  # what macOS 15 prints, whole
    "sysctl": """#!/bin/sh
case "$2" in
  machdep.cpu.brand_string) echo "Apple M4 Max" ;;
  hw.memsize) echo 68719476736 ;;
  vm.swapusage) echo "total = 2048.00M  used = 1024.00M  free = 1024.00M  (encrypted)" ;;
esac
""",
    "pmset": """#!/bin/sh
case "$*" in
  "-g ps") cat <<'END'
Now drawing from 'Battery Power'
 -InternalBattery-0 (id=4653155)	81%; discharging; 5:12 remaining present: true
END
  ;;
  *) cat <<'END'
System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 powernap             0
 networkoversleep     0
 sleep                1 (sleep prevented by sharingd)
 hibernatemode        3
 displaysleep         2
 lowpowermode         1
 tcpkeepalive         1
END
  ;;
esac
""",
    "memory_pressure": """#!/bin/sh
echo "The system has 68719476736 (4194304 pages with a page size of 16384)."
echo "System-wide memory free percentage: 37%"
""",
}
SECRETS: list[tuple[Any, Any]] = [
    ({"gpus": 2, "max_tokens": 8}, {"gpus": 2, "max_tokens": 8}),
    ({"api_key": "zz1"}, {"api_key": HIDDEN}),
    ({"HF_TOKEN": "zz1", "nested": {"password": "zz2"}}, {"HF_TOKEN": HIDDEN, "nested": {"password": HIDDEN}}),
    ({"flags": "--api-key zz1 --tp 2 --hf-token=zz2"}, {"flags": f"--api-key {HIDDEN} --tp 2 --hf-token={HIDDEN}"}),
    ({"flags": ["--tp 2", "--api-key zz1"]}, {"flags": ["--tp 2", f"--api-key {HIDDEN}"]}),
    ({"cache_state": "empty", "quantization": None}, {"cache_state": "empty", "quantization": None}),
]


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Make *programs* the only ones, beside those of a plain system."""
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(("given", "kept"), SECRETS)
def test_what_looks_like_a_secret_is_hidden(given: Any, kept: Any) -> None:
    assert redact_secrets(given) == kept
    assert all(secret.startswith("zz") for secret in list_secrets(given))
    assert set(list_secrets(kept)) <= {HIDDEN}
    assert redact_secrets(kept) == kept


def test_a_host_without_gpus_says_nothing_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not {"gpus", "gpu_topology", "chip"} & describe_host().keys()
    put(tmp_path, monkeypatch, **{"nvidia-smi": "#!/bin/sh\nexit 9\n"})
    assert "gpus" not in describe_host()


def test_gpus_with_their_driver_and_how_they_are_wired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, monkeypatch, **{"nvidia-smi": SMI})
    host = describe_host()
    assert host["gpus"][1] == {
        "name": "NVIDIA H100 80GB HBM3",
        "driver": "570.86.15",
        "memory": "81559 MiB",
        "power_limit": "700.00 W",
        "pcie": "5",
        "persistence": "Enabled",
    }
    assert (len(host["gpus"]), host["gpu_topology"]) == (2, "GPU0 GPU1 NV18")


def test_a_mac_says_what_its_memory_is_shared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    put(tmp_path, monkeypatch, **MAC)
    host = describe_host()
    assert (host["chip"], host["unified_memory_bytes"], host["memory_free_percent"]) == ("Apple M4 Max", 64 << 30, 37)
    assert (host["power_mode"], host["on_battery"]) == ({"lowpowermode": 1}, True)
    assert host["swap"] == "total = 2048.00M  used = 1024.00M  free = 1024.00M  (encrypted)"


def test_a_mac_whose_programs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    host = describe_host()
    assert (host["chip"], host["unified_memory_bytes"], host["power_mode"], host["swap"]) == (None, None, None, None)
