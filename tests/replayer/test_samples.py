# A page of Prometheus text, line by line: what is a sample, what is none, and what a server may put into a label.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadshape.replayer.disclosure import pick_cache, pick_engine
from loadshape.replayer.samples import Sample, parse_page

LINES = [
    ("up 1", Sample("up", {}, 1.0)),
    ("up{} 1", Sample("up", {}, 1.0)),
    ('up{a="b"} 2.5', Sample("up", {"a": "b"}, 2.5)),
    ('up{a="b",} 2.5', Sample("up", {"a": "b"}, 2.5)),
    ('up { a = "b" , c="d" }  1e3  1700000000000', Sample("up", {"a": "b", "c": "d"}, 1000.0)),
    ('up{a="}",b="x\\"y\\\\z\\nw"} 1', Sample("up", {"a": "}", "b": 'x"y\\z\nw'}, 1.0)),
    ('up{le="+Inf"} +Inf', Sample("up", {"le": "+Inf"}, math.inf)),
    ("up -0.5", Sample("up", {}, -0.5)),
    ("up", None),
    ("up one", None),
    ('up{a="b" 1', None),
    ("up{a=b} 1", None),
    ('up{a="b"c="d} 1', None),
    ("up 1 2 3", None),
    ("upper 1", None),
    ("# up 1", None),
    ("", None),
]


@pytest.mark.parametrize(("line", "sample"), LINES)
def test_a_line_is_one_sample_or_none(line: str, sample: Sample | None) -> None:
    assert list(parse_page(f"before 3\n{line}\nafter 4\n", {"up"})) == ([] if sample is None else [sample])


def test_a_number_that_is_none_is_a_sample_all_the_same() -> None:
    (sample,) = parse_page("up NaN", {"up"})
    assert math.isnan(sample.value)


@given(
    st.dictionaries(st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True).filter(str.isascii), st.text()),
    st.floats(allow_nan=False),
)
def test_what_is_written_by_the_rules_is_read_back(labels: dict[str, str], value: float) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inner = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items())
    assert list(parse_page(f"up{{{inner}}} {value!r}", {"up"})) == [Sample("up", labels, value)]


@given(st.text(alphabet='up{}=",\\ \n1a#'))
def test_no_page_is_an_error(page: str) -> None:
    assert all(sample.name == "up" for sample in parse_page(page, {"up"}))


def test_of_the_cache_only_what_is_wanted_and_known_is_kept() -> None:
    page = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="900",sliding_window="None"} 1.0\n'
    assert pick_cache(page) == {"block_size": "16", "num_gpu_blocks": "900"}
    assert pick_cache("vllm:num_requests_running 0\n") is None


@pytest.mark.parametrize(
    "info", [None, [], "text", {}, {"vllm_config": "model='m', dtype=float16"}, {"vllm_config": None}]
)
def test_a_server_that_says_nothing_of_its_engine(info: object) -> None:
    assert pick_engine(info) is None


def test_of_the_engine_no_secret_and_no_path_is_kept() -> None:
    info = {
        "vllm_config": {
            "model_config": {
                "model": "/models/m",
                "dtype": "torch.bfloat16",
                "hf_token": "planted",
                "revision": None,
            },
            "parallel_config": {"tensor_parallel_size": 2, "master_addr": "192.0.2.7"},
            "speculative_config": None,
        },
        "vllm_env": {"VLLM_SOMETHING": "planted"},
        "system_env": {"nvidia_gpu_models": "GPU 0: X", "nvidia_driver_version": "None", "env_vars": "planted"},
    }
    assert pick_engine(info) == {
        "model_config": {"dtype": "torch.bfloat16"},
        "parallel_config": {"tensor_parallel_size": 2},
        "system": {"nvidia_gpu_models": "GPU 0: X"},
    }
