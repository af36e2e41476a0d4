# A run file: what it may say, and what of it may go into a log.

from __future__ import annotations

from pathlib import Path

import pytest

from loadshape.errors import InputError
from loadshape.runfile import RunFile

HEADERS = [
    ('x-key = "a secret"', 'x-key = "***"'),
    ("x-key = 'a secret'", "x-key = '***'"),
    ('x-key = "a secret", x-empty = ""', 'x-key = "***", x-empty = ""'),
    ('x-key = "a \\u0073ecret"', None),  # written so that it cannot be found: then nothing is kept
    ('x-key = """a secret"""', None),
]


@pytest.mark.parametrize(("given", "kept"), HEADERS)
def test_the_values_of_headers_do_not_go_into_the_log(given: str, kept: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[replay]\ngrace_s = 3\n[target]\nheaders = {{ {given} }}\n")
    run = RunFile.load(path)
    assert (run.target.headers["x-key"], run.replay.grace_s) == ("a secret", 3)
    assert "secret" not in run.replay.verbatim
    if kept is not None:
        assert run.replay.verbatim == f"[replay]\ngrace_s = 3\n[target]\nheaders = {{ {kept} }}\n"


def test_a_text_without_headers_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("# why\n[replay]\nspin_us = 0\n")
    assert RunFile.load(path).replay.verbatim == path.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[replay]\ntimeout_frist_s = 3", "; did you mean timeout_first_s?"),
        ("[target]\nheader = {}", "; did you mean headers?"),
        ('[[targets]]\nurl = "http://192.0.2.1/v1"\nwieght = 2', "; did you mean weight?"),
        ("[limits]\ncpuu = 1", "; did you mean cpu?"),
        ("[reply]\nspin_us = 1", "; did you mean replay?"),
        ("grace_s = 3", "; grace_s belongs into the section [replay]"),
        ("[replay]\nheaders = {}", "; headers belongs into the section [target]"),
        ("[replay]\nweight = 2", "; weight belongs into the section [[targets]]"),
        ("[replay]\nzzz = 1", "field `zzz` - at `$.replay`"),
    ],
)
def test_a_key_that_is_not_known_is_told_with_the_nearest_one(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        RunFile.load(path)
    assert str(raised.value).startswith(f"{path}: Object contains unknown field `")
    assert str(raised.value).endswith(told)


def test_what_is_declared_is_any_fact_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = '[declared]\ngpus = 2\nflags = "--api-key planted --tp 2"\nhf_token = "planted too"\ncache_state = "warm"\n'
    path.write_text(text)
    run = RunFile.load(path)
    assert run.replay.declared["gpus"] == 2
    assert run.replay.declared["cache_state"] == "warm"
    assert "planted" not in run.replay.verbatim
    assert 'gpus = 2\nflags = "--api-key *** --tp 2"' in run.replay.verbatim
    path.write_text('[declared]\napi_key = "pl\\u0061nted"\n')  # written so that it cannot be found: nothing is kept
    assert RunFile.load(path).replay.verbatim == ""
