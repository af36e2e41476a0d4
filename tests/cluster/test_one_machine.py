# Three nodes on one machine, as Ray's own tests have them: no root, no namespaces, one clock. What needs machines of
# their own is in test_cluster.py.

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from loadshape.endpoint import Script, running
from loadshape.log import Log
from loadshape.validity import judge
from traces import open_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLAY = """
import json, os, signal, sys, threading, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import loadshape as ls

folder, url = Path(sys.argv[1]), sys.argv[2]
limits = {"object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **limits})
nodes = [cluster.add_node(num_cpus=1, **limits) for _ in range(3)]
launcher = ls.RayLauncher(nodes=3, address=cluster.address, on_lost="continue")


def play(name, watch=None):
    log = ls.replay(folder / name, ls.Target(url), log=folder / f"{name}.log", launcher=launcher, watch=watch)
    print(json.dumps(log.manifest.outcomes), flush=True)


def lose(progress, elapsed_s):
    if elapsed_s > 1 and len(nodes) == 3:
        cluster.remove_node(nodes.pop(), allow_graceful=False)


play("whole")
play("partly", lose)
cluster.shutdown()
"""


def test_three_nodes_and_then_two(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="comes with the extra ray")
    open_loop(300, 10).write(tmp_path / "whole")
    open_loop(600, 10).write(tmp_path / "partly")
    with running(Script(ttft_s=0.02, itl_s=0.002)) as url:
        command = [sys.executable, "-c", PLAY, str(tmp_path), url]
        played = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert played.returncode == 0, played.stderr
    whole, partly = Log.open(tmp_path / "whole.log"), Log.open(tmp_path / "partly.log")
    assert [json.loads(line) for line in played.stdout.splitlines() if line.startswith("{")] == [
        whole.manifest.outcomes,
        partly.manifest.outcomes,
    ]
    assert whole.manifest.outcomes == {"ok": 300}
    assert whole.requests["request"].to_pylist() == list(range(300))
    assert np.bincount(np.asarray(whole.requests["node"])).tolist() == [100, 100, 100]
    assert all(abs(it.offset_ns or 0) <= (it.bound_ns or 0) for node in whole.nodes for it in node.bursts)  # one clock
    (lost,) = [it for it in partly.nodes if it.lost]
    gone = pc.equal(partly.requests["node"], lost.node)
    assert set(partly.requests.filter(gone)["outcome"].cast("string").to_pylist()) == {"lost"}
    assert set(partly.requests.filter(pc.invert(gone))["outcome"].cast("string").to_pylist()) == {"ok"}
    assert judge(partly).status == "INVALID"
