# A fixture on one page: what it was made from, what was dropped, what was removed, what may be left.
#
# Law: numbers and names of kinds, never the text, nor a stand-in, nor a label of the source. Whatever a file or a
# policy says is text and is escaped. The page is one file of HTML and CSS: no script, no network, no font, and a
# content security policy that would refuse them.
#
# The order is that of trust: the account of rows first, then findings by kind and by who found them, then what that
# did to lengths, then how good the policy is known to be, then the audit.

"""HTML page of a fixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

import numpy as np
import pyarrow.compute as pc

from loadshape.audit import Audit, read_audit
from loadshape.fixture import Fixture

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --rule: #8884; --bar: #3b7dd855; }}
body {{ margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.6rem; margin: 0; }} h2 {{ font-size: 1.15rem; margin: 2.4rem 0 0.5rem; }}
p {{ margin: 0.3rem 0; max-width: 46rem; }} .quiet {{ opacity: 0.7; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }}
th {{ font-weight: 600; white-space: nowrap; }} thead th {{ opacity: 0.7; font-size: 0.86rem; }}
td {{ overflow-wrap: anywhere; }} td.number {{ text-align: right; white-space: nowrap; }}
td.bar {{ width: 45%; }} td.bar i {{ display: block; height: 1.1em; background: var(--bar); border-radius: 3px; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
_QUANTILES = {"p50": 50, "p90": 90, "p99": 99, "longest": 100}


def write_leaflet(fixture: Fixture) -> str:
    """Return the page of *fixture*, with its audit if there is one. Raises FixtureError if that is of another one."""
    about = fixture.manifest
    account = about.account
    recognizers = fixture.findings_table.column("recognizer").value_counts().to_pylist()
    sections = (
        f"<h1>{escape(fixture.path.name)}</h1>",
        f'<p class="quiet">{len(fixture):,} conversations, {about.messages:,} messages, {about.characters:,} '
        f"characters; {about.repeated_messages:,} messages repeat another one. {escape(about.digest)}</p>",
        _titled("Made from", _write_facts(_list_facts(fixture))),
        _titled(
            "Rows", f"<p>{account.read:,} read = {account.kept:,} kept + {sum(account.dropped.values()):,} dropped</p>"
        )
        + _write_bars({"kept": account.kept, **account.dropped}),
        _titled("Turns that left kept conversations, or changed", _write_bars(account.turns)),
        _titled("Removed, by kind", _write_bars(about.findings)),
        _titled("Removed, by who found it", _write_bars({it["values"]: it["counts"] for it in recognizers})),
        _titled("Removed by the text filter", _write_bars(_count_filters(fixture))),
        _titled("Lengths", _write_lengths(fixture)),
        _titled("How much this policy finds", _write_figures(fixture)),
        _titled("Audit", _write_audit(read_audit(fixture))),
        f'<p class="quiet">{escape(about.tool)}. This page holds no text of the fixture.</p>',
    )
    return _PAGE.format(title=escape(fixture.path.name), body="\n".join(sections))


def measure_lengths(fixture: Fixture) -> tuple[list[int], list[int]]:
    """Return the lengths of all messages in characters, before and after what was found was replaced."""
    messages = fixture.conversations.column("messages")
    after = np.asarray(pc.utf8_length(pc.struct_field(pc.list_flatten(messages), "text")), dtype=np.int64)
    first = np.cumsum([0, *pc.list_value_length(messages).to_pylist()])
    table = fixture.findings_table
    place = first[table.column("conversation").to_numpy()] + table.column("message").to_numpy()
    was = table.column("end").to_numpy().astype(np.int64) - table.column("start").to_numpy()
    lost = was - np.asarray(pc.utf8_length(table.column("placeholder")), dtype=np.int64)
    before = after.copy()
    np.add.at(before, place, lost)
    return before.tolist(), after.tolist()


def _list_facts(fixture: Fixture) -> dict[str, str]:
    about, origin = fixture.manifest, fixture.manifest.provenance
    policy = {"policy": f"{about.policy.name}, {about.policy.digest}", "made": f"{about.created_at} by {about.tool}"}
    if origin is None:
        return policy
    return {
        "input": f"{origin.name} ({origin.source}), {origin.bytes:,} bytes, SHA-256 {origin.sha256 or 'not known'}",
        "complete": "yes" if origin.complete else f"no: {origin.note}",
        "licence": origin.licence,
        "address": origin.uri or "not stated",
        "revision": origin.revision or "not stated",
        "retrieved": origin.retrieved_at or "not known",
        **({"stated by the maker": ", ".join(origin.stated)} if origin.stated else {}),
        **policy,
        **{f"uses {name}": version for name, version in about.recognizers.items()},
    }


def _count_filters(fixture: Fixture) -> Mapping[str, int]:
    return sum((Counter(it.removed) for it in fixture.manifest.filters), Counter[str]())


def _write_lengths(fixture: Fixture) -> str:
    sides = zip(("before", "after"), measure_lengths(fixture), strict=True)
    rows = [
        (name, *(f"{np.percentile(lengths, q, method='higher'):,.0f}" for q in _QUANTILES.values()))
        for name, lengths in sides
        if lengths
    ]
    table = _write_table(("characters of a message", *_QUANTILES), rows)
    it = fixture.manifest.lengths
    if it is None:
        return table
    return table + (
        f"<p>In tokens ({escape(it.tokenizer)}): {it.before:,} before, {it.after:,} after. One stand-in lost at most "
        f"{it.largest_loss:,} (allowed: {it.tolerance_tokens:,}) and gained at most {it.largest_gain:,}.</p>"
    )


def _write_figures(fixture: Fixture) -> str:
    figures = fixture.manifest.figures
    if isinstance(figures, str):
        return "<p>Not measured: no figures are published for exactly this policy.</p>"
    rows = [
        (name, kind, f"{share.share:.1%}", f"{share.found:,} of {share.asked:,}")
        for name, each in figures.items()
        for kind, share in (*each.recall.items(), ("negatives left alone", each.negatives_untouched))
    ]
    return _write_table(("set", "kind", "recall", "values"), rows)


def _write_audit(audit: Audit | None) -> str:
    if audit is None:
        return "<p>Nobody has looked: <code>loadshape audit</code> does.</p>"
    told = f"<p>{escape(audit.summary)} ({escape(audit.audited_at)}). Meant to find too much: no recall.</p>"
    return told + _write_bars({kind: it.findings for kind, it in audit.residue.items()})


def _write_bars(counts: Mapping[str, int]) -> str:
    if not counts:
        return "<p>None.</p>"
    most = max(counts.values()) or 1
    rows = "\n".join(
        f'<tr><th>{escape(name)}</th><td class="number">{count:,}</td>'
        f'<td class="bar"><i style="width: {100 * count / most:.1f}%"></i></td></tr>'
        for name, count in sorted(counts.items(), key=lambda it: (-it[1], it[0]))
    )
    return f"<table><tbody>\n{rows}\n</tbody></table>"


def _write_facts(facts: Mapping[str, str]) -> str:
    rows = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table><tbody>\n{rows}\n</tbody></table>"


def _write_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def _titled(title: str, inner: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{inner}"
