# What a fixture says of itself to other programs: as a Croissant description, as an in-toto statement, or as text.
#
# Law: what is said is what the manifest says, in other words; nothing is added and nothing is guessed. A licence that
# is not stated stays "not stated", in every form. The first two hold no text. The third is all text, so where no
# licence allows to pass it on, it wants to be asked for in so many words.
#
#     croissant   JSON-LD of MLCommons Croissant 1.0: the tables as FileObjects, their columns as RecordSets
#     in-toto     Statement v1 with SLSA provenance v1: the tables are the subjects; the input, the policy and the
#                 packages that decided what was found are the resolved dependencies
#     messages    lines of {"id", "messages": [{"role", "content"}]}, which `read("messages", ...)` reads again
#
# Sources: docs.mlcommons.org/croissant/docs/croissant-spec.html; in-toto.io/Statement/v1; slsa.dev/provenance/v1.

"""Write what a fixture is, for others: `export_fixture(fixture, "chats.json", "croissant")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadshape.bounds import check_choice
from loadshape.digest import digest_file
from loadshape.errors import FixtureError
from loadshape.fixture import CONVERSATION_SCHEMA, CONVERSATIONS, FINDING_SCHEMA, FINDINGS, Fixture
from loadshape.provenance import NOT_STATED

_TABLES = {CONVERSATIONS: CONVERSATION_SCHEMA, FINDINGS: FINDING_SCHEMA}
_ARROW = "application/vnd.apache.arrow.file"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "isLiveDataset": "cr:isLiveDataset",
    "recordSet": "cr:recordSet",
    "repeated": "cr:repeated",
    "sc": "https://schema.org/",
    "source": "cr:source",
}


def export_fixture(
    fixture: Fixture, path: str | Path, format: str, *, with_text: bool = False, force: bool = False
) -> Path:
    """Write what *fixture* is, or with the format `messages` what it says, to *path*.

    Raises FixtureError where text would go out under no stated licence, and *with_text* does not say that it is meant.
    """
    check_choice("format", format, FORMATS)
    path = Path(path)
    if format == "messages" and not with_text and _licence(fixture) == NOT_STATED:
        raise FixtureError(
            f"{fixture.path}: the licence of its text is not stated, so nobody has allowed to pass it on; say "
            "--with-text if it stays with you, or state the licence when the fixture is made (--stated licence=...)"
        )
    if path.exists() and not force:
        raise FixtureError(f"{path}: exists; choose another name, or say --force to replace it")
    with path.open("wb") as file:
        file.writelines(FORMATS[format](fixture))
    return path


def describe_croissant(fixture: Fixture) -> dict[str, Any]:
    """Return the fixture as a Croissant data set in JSON-LD."""
    about, origin = fixture.manifest, fixture.manifest.provenance
    described: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": fixture.path.stem,
        "description": _describe(fixture),
        "license": _licence(fixture),
        "url": (origin and origin.uri) or NOT_STATED,
        "version": about.digest,
        "datePublished": about.created_at,
        "creator": {"@type": "sc:SoftwareApplication", "name": about.tool},
        "isLiveDataset": False,
        "distribution": [_describe_file(fixture, name) for name in _TABLES],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": name.partition(".")[0],
                "name": name.partition(".")[0],
                "field": [_describe_field(name, field.name, str(field.type)) for field in schema],
            }
            for name, schema in _TABLES.items()
        ],
    }
    if origin is not None:
        described["isBasedOn"] = {
            "@type": "sc:Dataset",
            "name": origin.name,
            "license": origin.licence,
            **({"url": origin.uri} if origin.uri else {}),
            **({"version": origin.revision} if origin.revision else {}),
        }
    return described


def describe_statement(fixture: Fixture) -> dict[str, Any]:
    """Return an in-toto statement with SLSA provenance: these tables were made from that input, by that policy."""
    about = fixture.manifest
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest_file(fixture.path / name)}} for name in _TABLES],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:loadshape:fixture:1",
                "externalParameters": {"policy": about.policy.name, "licence": _licence(fixture)},
                "internalParameters": {
                    "content_digest": about.digest,
                    "account": msgspec.to_builtins(about.account),
                    "filters": msgspec.to_builtins(about.filters),
                    "tokenizer": about.lengths and about.lengths.tokenizer,
                },
                "resolvedDependencies": list(_list_dependencies(fixture)),
            },
            "runDetails": {
                "builder": {"id": "urn:loadshape", "version": {"loadshape": about.tool.rpartition(" ")[2]}},
                "metadata": {"finishedOn": about.created_at},
            },
        },
    }


def _list_dependencies(fixture: Fixture) -> Iterator[dict[str, Any]]:
    about, origin = fixture.manifest, fixture.manifest.provenance
    if origin is not None:
        facts = msgspec.to_builtins(origin)
        yield {
            "name": origin.name,
            **({"uri": origin.uri} if origin.uri else {}),
            "digest": {"sha256": origin.sha256},
            "annotations": {key: value for key, value in facts.items() if key not in ("name", "uri", "sha256")},
        }
    yield {"name": f"policy {about.policy.name}", "digest": {"sha256": about.policy.digest}}
    for package, version in about.recognizers.items():
        sha256 = about.packages_sha256.get(package)
        digest = {"digest": {"sha256": sha256}} if sha256 else {}
        yield {"name": package, "uri": f"pkg:pypi/{package.replace('_', '-').lower()}@{version}", **digest}


def _describe(fixture: Fixture) -> str:
    about = fixture.manifest
    found = sum(about.findings.values())
    return (
        f"{about.conversations:,} conversations, sanitized under the policy {about.policy.name!r}, which removed "
        f"{found:,} findings; {about.account.kept:,} of {about.account.read:,} source rows were kept. "
        "Sanitizing lowers a risk; it is no anonymity."
    )


def _describe_file(fixture: Fixture, name: str) -> dict[str, Any]:
    path = fixture.path / name
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{path.stat().st_size} B",
        "encodingFormat": _ARROW,
        "sha256": digest_file(path),
    }


def _describe_field(table: str, column: str, kind: str) -> dict[str, Any]:
    plain = "sc:Integer" if "int" in kind else "sc:Float" if "float" in kind else "sc:Text"
    return {
        "@type": "cr:Field",
        "@id": f"{table.partition('.')[0]}/{column}",
        "name": column,
        "dataType": "sc:Text" if kind.startswith("list") else plain,
        **({"repeated": True} if kind.startswith("list") else {}),
        "source": {"fileObject": {"@id": table}, "extract": {"column": column}},
    }


def _licence(fixture: Fixture) -> str:
    origin = fixture.manifest.provenance
    return origin.licence if origin else NOT_STATED


def _write_json(described: dict[str, Any]) -> Iterator[bytes]:
    yield msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n"


def _write_messages(fixture: Fixture) -> Iterator[bytes]:
    for it in fixture:
        messages = [{"role": message.role, "content": message.text} for message in it.messages]
        yield msgspec.json.encode({"id": it.identity, "messages": messages}) + b"\n"


FORMATS: dict[str, Callable[[Fixture], Iterator[bytes]]] = {
    "croissant": lambda fixture: _write_json(describe_croissant(fixture)),
    "in-toto": lambda fixture: _write_json(describe_statement(fixture)),
    "messages": _write_messages,
}
