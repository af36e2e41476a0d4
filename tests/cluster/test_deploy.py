# Templates of docs/deploy. Their structure is held against what a run needs; the commands in them are parsed by our own
# command line; rank.sh is run, with an invented Ray for its branches and with the real one for a cluster of three.

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end.conftest import wait_for

from loadshape.cli import app
from loadshape.runfile import RunFile

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
RANK = DEPLOY / "rank.sh"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
RAYJOB, RAYJOB_RUN = yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text(encoding="utf-8"))
SERVICE, JOB, JOB_RUN = yaml.safe_load_all((DEPLOY / "indexed-job.yaml").read_text(encoding="utf-8"))
CLUSTER = RAYJOB["spec"]["rayClusterSpec"]
HEAD, (LOAD,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
PODS = {"head": HEAD["template"], "load": LOAD["template"], "rank": JOB["spec"]["template"]}
RUNS = {"rayjob": RAYJOB_RUN, "indexed-job": JOB_RUN}
COMMANDS = {
    "rayjob": shlex.split(RAYJOB["spec"]["entrypoint"]),
    "indexed-job": PODS["rank"]["spec"]["containers"][0]["args"],
}


def get_container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def read_flag(command: list[str], flag: str) -> str:
    _, _, after = " ".join(command).replace("=", " ").partition(f"{flag} ")
    return after.split(" ")[0]


class TestManifests:
    @pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
    def test_our_command_line_accepts_the_command(self, command: list[str]) -> None:
        assert command[0] == "loadshape"
        app.parse_args(command[1:], exit_on_error=False, print_error=False)
        assert read_flag(command, "--ray") == "auto"
        assert read_flag(command, "--key") == "env:LOADSHAPE_KEY"

    @pytest.mark.parametrize("name", RUNS)
    def test_the_run_file_is_one_and_says_the_same(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / "run.toml"
        path.write_text(RUNS[name]["data"]["run.toml"], encoding="utf-8")
        run = RunFile.load(path)
        assert run.cluster is not None
        assert str(run.cluster.nodes) == read_flag(COMMANDS[name], "--nodes")
        pod = PODS["load" if name == "rayjob" else "rank"]
        assert run.cluster.scratch in {it["mountPath"] for it in get_container(pod)["volumeMounts"]}
        assert 1 <= run.replay.processes < int(get_container(pod)["resources"]["requests"]["cpu"])

    def test_the_head_carries_no_load(self) -> None:
        assert HEAD["rayStartParams"]["num-cpus"] == "0"
        assert "--num-cpus=0" in RANK.read_text(encoding="utf-8")

    def test_there_are_as_many_pods_as_nodes(self) -> None:
        assert {LOAD[name] for name in ("replicas", "minReplicas", "maxReplicas")} == {
            int(read_flag(COMMANDS["rayjob"], "--nodes"))
        }
        wanted = int(read_flag(COMMANDS["indexed-job"], "--nodes")) + 1
        env = {it["name"]: it.get("value") for it in get_container(PODS["rank"])["env"]}
        assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"] == int(env["SIZE"]) == wanted
        assert JOB["spec"]["completionMode"] == "Indexed"

    def test_the_first_pod_is_found_by_name(self) -> None:
        env = {it["name"]: it.get("value") for it in get_container(PODS["rank"])["env"]}
        assert env["HEAD"] == f"{JOB['metadata']['name']}-0.{SERVICE['metadata']['name']}"
        assert PODS["rank"]["spec"]["subdomain"] == SERVICE["metadata"]["name"]
        assert SERVICE["spec"]["clusterIP"] == "None"
        assert SERVICE["spec"]["publishNotReadyAddresses"]
        assert SERVICE["spec"]["selector"].items() <= PODS["rank"]["metadata"]["labels"].items()

    def test_nothing_is_played_twice(self) -> None:
        assert RAYJOB["spec"]["backoffLimit"] == RAYJOB["spec"]["submitterConfig"]["backoffLimit"] == 0
        assert RAYJOB["spec"]["shutdownAfterJobFinishes"]
        assert RAYJOB["spec"]["ttlSecondsAfterFinished"] > 0
        assert JOB["spec"]["backoffLimit"] == 0
        assert {pod["spec"]["restartPolicy"] for pod in PODS.values()} == {"Never"}

    @pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
    def test_each_pod_is_on_a_machine_of_its_own(self, pod: dict[str, Any]) -> None:
        (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()

    @pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
    def test_whole_cores_and_no_quota(self, pod: dict[str, Any]) -> None:
        resources = get_container(pod)["resources"]
        assert "cpu" not in resources["limits"]
        assert resources["requests"]["cpu"].isdigit()
        for name, limit in resources["limits"].items():
            assert resources["requests"][name] == limit

    @pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
    def test_secrets_are_references(self, pod: dict[str, Any]) -> None:
        env = {it["name"]: it for it in get_container(pod)["env"]}
        assert env["RAY_worker_niceness"]["value"] == "0"
        assert "secretKeyRef" in env["LOADSHAPE_KEY"]["valueFrom"]
        for name, it in env.items():
            assert not (re.search("key|token", name, re.IGNORECASE) and "value" in it), name

    @pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
    def test_nobody_is_root_and_every_mount_has_a_volume(self, pod: dict[str, Any]) -> None:
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        volumes = {it["name"] for it in pod["spec"]["volumes"]}
        assert {it["name"] for it in get_container(pod)["volumeMounts"]} == volumes

    def test_ray_is_the_pinned_one_and_not_open(self) -> None:
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        assert f"ray=={CLUSTER['rayVersion']}" in pins
        assert CLUSTER["authOptions"]["mode"] == "token"
        env = {it["name"]: it for it in get_container(PODS["rank"])["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"


class TestImage:
    def test_what_it_copies_is_there(self) -> None:
        for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
            *sources, _ = [word for word in line.split() if not word.startswith("--")]
            assert [source for source in sources if not (ROOT / source).exists()] == []

    def test_what_it_installs_is_ours_and_pinned(self) -> None:
        (line,) = re.findall(r"^RUN pip install (.*)$", DOCKERFILE, re.MULTILINE)
        words = shlex.split(line)
        assert words[words.index("--constraint") + 1] == "constraints.txt"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(re.findall(r"\.\[(\w+)\]", line)) == {"ray"} <= set(project["optional-dependencies"])
        (version,) = re.findall(r"^FROM python:([\d.]+)-slim$", DOCKERFILE, re.MULTILINE)
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]

    def test_whatever_ray_brings_is_pinned(self) -> None:
        pytest.importorskip("ray", reason="comes with the extra ray")
        pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()}
        pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
        needs = [it.partition(";") for it in metadata.requires("ray") or []]
        names = {re.split(r"[^\w.-]", need)[0] for need, _, when in needs if not when or '"default"' in when}
        assert {re.sub(r"[-_.]+", "-", name).lower() for name in names} <= pinned

    def test_it_is_not_root_and_not_nice(self) -> None:
        order = [line.split()[0] for line in DOCKERFILE.splitlines() if re.match(r"(RUN|USER) ", line)]
        assert order[-1] == "USER"
        assert re.search(r"^USER 1000$", DOCKERFILE, re.MULTILINE)
        assert re.search(r"^ENV RAY_worker_niceness=0$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_a_script_is_one_in_every_shell(script: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", script], check=True)


def test_slurm_says_who_is_who(tmp_path: Path) -> None:
    put_program(tmp_path / "scontrol", 'echo "node7\nnode8\nnode9"')
    put_program(tmp_path / "srun", 'echo "$HEAD:$HEAD_PORT ${#RAY_AUTH_TOKEN} $*"')
    slurm = {"SLURM_JOB_NODELIST": "node[7-9]", "SLURM_JOB_ID": "123456", "SLURM_JOB_NUM_NODES": "3"}
    env = os.environ | slurm | {"SLURM_SUBMIT_DIR": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", DEPLOY / "slurm.sh", "rush.trace", "rush.log", "http://192.0.2.5:8000/v1"]
    said = subprocess.run(command, env=env | {"KEY_FILE": "keys/ada"}, capture_output=True, text=True, check=True)
    head, token, *words = said.stdout.split()
    assert (head, token) == ("node7:23456", "64")
    assert Path(words[2]) == RANK
    replay = words[words.index("loadshape") :]
    app.parse_args(replay[1:], exit_on_error=False, print_error=False)
    assert read_flag(replay, "--nodes") == "2"
    assert read_flag(replay, "--key") == "file:keys/ada"


def put_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


class Ranks:
    """Ranks of one job as processes of this machine; whatever they start is known by a mark in its environment."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.mark = folder, f"DEPLOY_MARK={uuid.uuid4().hex}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        name, _, value = self.mark.partition("=")
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = os.environ | {"HEAD": "127.0.0.1", "HEAD_PORT": str(self.port), "PATH": path, name: value} | env

    def start(self, rank: int, *command: str) -> subprocess.Popen[str]:
        here = {"RANK": str(rank), "NODE_IP": f"127.0.0.{rank + 1}", "RAY_TMPDIR": str(self.folder / str(rank))}
        return subprocess.Popen(
            ["sh", RANK, *command], env=self.env | here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def list_left(self) -> dict[int, str]:
        """Return what is still running, with its command line."""
        left = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes():
                    left[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        return left

    def end(self) -> None:
        """End what is still running, after a test that failed."""
        for number in self.list_left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


# `ray start` listens at the head's port until it is ended; `ray.nodes()` knows as many as the file `nodes` says.
RAY = """
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
port = [word.partition("=")[2] for word in sys.argv if word.startswith("--port=")]
there = socket.create_server(("127.0.0.1", int(port[0]))) if port else None
print("ray", *sys.argv[1:], flush=True)
signal.pause()
"""
NODES = """
from pathlib import Path
def init(**_): pass
def nodes(): return [{"Alive": True}] * int(Path(__file__).with_name("nodes").read_text())
"""


@pytest.fixture
def invented(tmp_path: Path) -> Ranks:
    """Ranks with an invented Ray."""
    (tmp_path / "start.py").write_text(RAY, encoding="utf-8")
    (tmp_path / "ray.py").write_text(NODES, encoding="utf-8")
    (tmp_path / "nodes").write_text("2", encoding="utf-8")
    put_program(tmp_path / "ray", f'exec {sys.executable} {tmp_path}/start.py "$@"')
    return Ranks(tmp_path, SIZE="2", WAIT_S="1", PYTHONPATH=str(tmp_path))


def finish(process: subprocess.Popen[str], timeout_s: float = 30) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
class TestRank:
    @pytest.mark.parametrize("code", [0, 1, 3])
    def test_the_head_ends_with_the_code_of_the_command(self, invented: Ranks, code: int) -> None:
        done = finish(invented.start(0, "sh", "-c", f'echo "$RAY_ADDRESS" "$RAY_worker_niceness"; exit {code}'))
        assert done[:2] == (code, f"127.0.0.1:{invented.port} 0\n")
        assert "--num-cpus=0" in done[2]
        assert invented.list_left() == {}

    def test_a_missing_rank_is_told(self, invented: Ranks) -> None:
        (invented.folder / "nodes").write_text("1", encoding="utf-8")
        code, out, err = finish(invented.start(0, "echo", "run"))
        assert (code, out) == (1, "")
        assert "expected 2 nodes, found 1" in err
        assert invented.list_left() == {}

    def test_a_missing_head_is_told(self, invented: Ranks) -> None:
        code, _, err = finish(invented.start(1, "echo", "run"))
        assert (code, err) == (1, f"rank 1: no head at 127.0.0.1:{invented.port} after 1 s\n")

    def test_a_head_that_does_not_start_is_told(self, invented: Ranks) -> None:
        put_program(invented.folder / "ray", "echo no room >&2; exit 1")
        code, _, err = finish(invented.start(0, "echo", "run"))
        assert code == 1
        assert "no room\nrank 0: the head did not start; see above" in err

    def test_a_node_that_ends_before_its_head_was_lost(self, invented: Ranks) -> None:
        put_program(invented.folder / "ray", "exit 0")
        with socket.create_server(("127.0.0.1", invented.port)):
            code, _, err = finish(invented.start(1, "echo", "run"))
        assert (code, err) == (1, "rank 1: this node was lost; see above\n")
        assert invented.list_left() == {}

    def test_a_node_ends_when_its_head_has_gone_and_no_sooner(self, invented: Ranks) -> None:
        with socket.create_server(("127.0.0.1", invented.port)):
            node = invented.start(1, "echo", "run")
            assert node.stderr is not None
            assert f"start --address=127.0.0.1:{invented.port}" in node.stderr.readline()
            node.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                node.wait(0.5)
        assert finish(node)[:2] == (0, "")
        assert invented.list_left() == {}

    def test_a_signal_reaches_the_command_as_ctrl_c(self, invented: Ranks) -> None:
        wait = "import signal\ntry: print('up', flush=True); signal.pause()\nexcept KeyboardInterrupt: exit(130)"
        head = invented.start(0, sys.executable, "-c", wait)
        assert head.stdout is not None
        assert head.stdout.readline() == "up\n"
        head.terminate()
        assert finish(head)[0] == 130
        assert invented.list_left() == {}

    @pytest.mark.parametrize("missing", ["HEAD", "SIZE", "RANK"])
    def test_what_is_not_said_is_asked_for(self, invented: Ranks, missing: str) -> None:
        env = {name: value for name, value in invented.env.items() if name != missing} | {missing: ""}
        done = subprocess.run(["sh", RANK, "true"], env=env, capture_output=True, text=True)
        assert (done.returncode, "expected RANK, SIZE and HEAD" in done.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="needs the loopback network 127.0.0.0/8, and /proc")
def test_three_ranks_are_a_cluster_until_the_command_ends() -> None:
    pytest.importorskip("ray", reason="comes with the extra ray")
    count = "import ray; ray.init(address='auto', log_to_driver=False); print(len(ray.nodes())); raise SystemExit(7)"
    folder = Path("/tmp") / f"ls-{uuid.uuid4().hex[:8]}"  # short: sockets lie in it
    folder.mkdir()
    limits = {"OBJECT_STORE_BYTES": "80000000", "RAY_raylet_start_wait_time_s": "90", "SIZE": "3"}
    job = Ranks(folder, WAIT_S="120", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=uuid.uuid4().hex * 2, **limits)
    try:
        others = [job.start(rank, "true") for rank in (1, 2)]
        code, out, err = finish(job.start(0, sys.executable, "-c", count), 200)
        assert (code, out) == (7, "3\n"), err
        assert [finish(other, 90)[0] for other in others] == [0, 0]
        wait_for(lambda: job.list_left() == {}, "everything to end")
    finally:
        job.end()
        shutil.rmtree(folder, ignore_errors=True)
