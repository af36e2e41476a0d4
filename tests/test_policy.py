# Policies: what is refused and how that is said, and what the digest covers.

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadshape.errors import PolicyError
from loadshape.policy import Policy, Second

SMALL = """
name = "small"
version = 1

[[rule]]
entity = "NUMBER"
recognizer = "pattern"
patterns = ['\\d+']
"""


def test_a_policy_is_decoded() -> None:
    policy = Policy.parse(SMALL)
    assert (policy.name, policy.languages, policy.models) == ("small", ("en",), ())
    (rule,) = policy.rules
    assert (rule.entity, rule.action, rule.where, rule.patterns) == ("NUMBER", "mask", "anywhere", (r"\d+",))


REFUSED = {
    # what is wrong: (replaced, by, message)
    "key of a rule": (
        "patterns",
        "paterns",
        r"unknown field `paterns` - at `\$\.rule\[0\]`; did you mean 'patterns'\?",
    ),
    "key of the policy": ("version = 1", "version = 1\nmodle = 1", r"`modle`; did you mean 'model'\?"),
    "key like nothing": ("version = 1", "version = 1\nzzz = 1", "unknown field `zzz`; known keys: accept, action"),
    "missing key": ("version = 1", "", "missing required field `version`"),
    "no rule": (SMALL[SMALL.index("[[rule]]") :], "rule = []", r"expected at least one \[\[rule\]\]"),
    "type": ("version = 1", 'version = "1"', r"Expected `int`, got `str` - at `\$\.version`"),
    "value": ("patterns", "action = 'burn'\npatterns", "Invalid enum value 'burn'"),
    "entity": ('"NUMBER"', '"<b>"', "entity: expected capitals"),
    "recognizer": (
        '"pattern"',
        '"patern"',
        "recognizer: expected pattern, ner:<model>, presidio:<class> or secrets:<class>, found 'patern'",
    ),
    "score": ("patterns", "score = 1.5\npatterns", "score: expected 0 to 1, found 1.5"),
    "pattern": (r"\d+", "(", r"not a regular expression: '\('"),
    "patterns of another": ('"pattern"', '"presidio:IpRecognizer"', "patterns: needed by the recognizer 'pattern'"),
    "options of a pattern": ("patterns", "options = {a = 1}\npatterns", "only a Presidio recognizer has options"),
    "ner without a model": (
        "recognizer = \"pattern\"\npatterns = ['\\d+']",
        'recognizer = "ner:small"\nlabels = ["PERSON"]',
        r"model: a rule uses 'ner:small'; models of the policy: none",
    ),
    "actions of nothing": ("version = 1", "version = 1\nactions = {PERSON = 'mask'}", "actions: no rule finds PERSON"),
    "second of nothing": (
        "version = 1",
        "version = 1\nsecond = {PERSON = {model = 'm', labels = ['X']}}",
        "second: no rule finds PERSON",
    ),
    "key of a second": (
        "version = 1",
        "version = 1\nsecond = {NUMBER = {modell = 'm', labels = ['X']}}",
        r"`modell`.*; did you mean 'model'\?",
    ),
    "no language": ("version = 1", "version = 1\nlanguages = []", "languages: expected at least one"),
    "needs": ("patterns", "needs = ['(']\npatterns", r"not a regular expression: '\('"),
    "TOML": ("version = 1", "version = ", "not valid TOML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named(case: str, tmp_path: Path) -> None:
    old, new, message = REFUSED[case]
    assert old in SMALL
    path = tmp_path / "mine.toml"
    path.write_text(SMALL.replace(old, new))
    with pytest.raises(PolicyError, match=rf"(?s)mine\.toml: .*{message}"):
        Policy.load(path)


def test_files_that_are_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"absent\.toml: expected a policy in TOML; .*No such file"):
        Policy.load(tmp_path / "absent.toml")
    with pytest.raises(PolicyError, match=r"defautl: no file and no name of sanitizers; did you mean 'default'\?"):
        Policy.load("defautl")


def test_a_bare_name_is_a_policy_that_comes_with_loadshape() -> None:
    assert Policy.load("default").name == "default"


def test_the_digest_is_of_the_meaning() -> None:
    policy = Policy.parse(SMALL)
    assert policy.digest == Policy.parse("# a comment\n" + SMALL.replace('"small"', "'small'")).digest
    assert policy.digest == Policy.parse(SMALL.replace("patterns", 'action = "mask"\npatterns')).digest
    assert policy.digest != Policy.parse(SMALL.replace(r"\d+", r"\d*")).digest


def test_the_content_is_the_whole_policy() -> None:
    policy = Policy.load("default")
    again = msgspec.convert(msgspec.json.decode(msgspec.json.encode(policy.content)), Policy)
    assert (again, again.digest) == (policy, policy.digest)


def test_the_default_policy_leaves_out_what_misfires() -> None:
    entities = {rule.entity for rule in Policy.load("default").rules}
    recognizers = {rule.recognizer for rule in Policy.load("default").rules}
    assert not entities & {
        "US_DRIVER_LICENSE",
        "US_BANK_NUMBER",
        "US_PASSPORT",
        "US_ITIN",
        "UK_NHS",
        "DATE_TIME",
        "NRP",
    }
    assert "presidio:UrlRecognizer" not in recognizers


def test_policies_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    own = 'name = "whole"\nversion = 3\ninclude = ["small.toml", "secrets-only"]\n[actions]\nNUMBER = "drop_turn"\n'
    (tmp_path / "whole.toml").write_text(own)
    policy = Policy.load(tmp_path / "whole.toml")
    assert policy.parts == {"small": 1, "secrets-only": Policy.load("secrets-only").version}
    assert [rule.action for rule in policy.rules if rule.entity == "NUMBER"] == ["drop_turn"]
    assert policy.rules[1:] == Policy.load("secrets-only").rules
    assert (policy.include, policy.actions) == ((), {}), "what is kept can be read without its parts"
    again = msgspec.convert(policy.content, Policy)
    assert again.digest == policy.digest


MODELS = """
name = "models"
version = 1
[second.PERSON]
model = "large"
labels = ["PER"]
score = 0.2
[[model]]
name = "small"
package = "p"
version = "1"
[[rule]]
entity = "PERSON"
recognizer = "ner:small"
labels = ["PERSON"]
[[rule]]
entity = "PERSON"
recognizer = "ner:large"
labels = ["PER"]
[[rule]]
entity = "PERSON"
recognizer = "pattern"
patterns = ["Ada"]
[[rule]]
entity = "LOCATION"
recognizer = "ner:small"
labels = ["GPE"]
"""
LARGE = '[[model]]\nname = "large"\npackage = "q"\nversion = "1"\n'


def test_a_second_opinion_is_of_what_other_models_find() -> None:
    policy = Policy.parse(MODELS + LARGE)
    assert [rule.second for rule in policy.rules] == [Second("large", ("PER",), 0.2), None, None, None]
    assert policy.second == {}, "what is kept has it in the rules"
    assert msgspec.convert(policy.content, Policy).digest == policy.digest
    with pytest.raises(PolicyError, match="model: a rule uses 'ner:large'; models of the policy: small"):
        Policy.parse(MODELS)


def test_a_part_may_hold_words_alone() -> None:
    words = Policy.load("words")
    assert not words.rules
    assert set(words.ignore) <= set(Policy.load("default").ignore)
    assert len(set(words.ignore)) == len(words.ignore), "each word once"
    assert all(word == word.casefold() for word in words.ignore)


def test_a_policy_does_not_include_itself(tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    path.write_text('name = "round"\nversion = 1\ninclude = ["round.toml"]')
    with pytest.raises(PolicyError, match="include: the policy includes itself"):
        Policy.load(path)


ALL = ("boilerplate", "contact", "default", "korean", "secrets-only", "shape-only", "strict", "thorough", "words")


@pytest.mark.parametrize("name", ALL)
def test_every_policy_that_comes_with_loadshape_is_one(name: str) -> None:
    policy = Policy.load(name)
    assert policy.name == name
    assert policy.description
    assert all(rule.needs for rule in policy.rules if not rule.recognizer.startswith("ner:")), "for speed"


def test_strict_drops_what_default_masks() -> None:
    default, strict = ({rule.entity: rule.action for rule in Policy.load(name).rules} for name in ("default", "strict"))
    changed = {entity for entity in default if default[entity] != strict[entity]}
    assert {"SECRET", "CREDIT_CARD", "KR_RRN", "STREET_ADDRESS", "CREDENTIAL"} <= changed
    assert {strict[entity] for entity in changed} == {"drop_conversation", "drop_turn"}
    assert not changed & {"PERSON", "LOCATION", "EMAIL_ADDRESS", "URL"}
