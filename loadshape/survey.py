# The doctor's round: one examination on every node of a cluster, and what comes of it on one page.
#
# Law: each node is examined by itself, as doctor.py does it here, in the process that would start its workers. Added is
# what only several machines have: versions that differ from the coordinator's, Ray's niceness and Ray's ports, the way
# from each node to the target, and a clock that is far away or does not answer. No traffic but one connection to each
# address of a target, closed at once, and one burst of pings.
#
# Findings that are alike are told once. Alike is what has the same status and the same remedy: where all is well,
# figures may differ and one node's stand for the others'; where something is to be done, each node's own figures count.
#
# The coordinator resolves a target's name, once, and the nodes get its addresses: so it is here.

"""Survey: what the doctor found on each node, and what of it they share."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

import msgspec

from loadshape.cluster.agent import Facts
from loadshape.cluster.beacon import Sounder, make_token
from loadshape.cluster.launcher import RayLauncher, count_nodes
from loadshape.cluster.member import get_answer
from loadshape.doctor import Finding, Status, examine
from loadshape.environment import describe_host
from loadshape.nodes import Burst
from loadshape.target import Target
from loadshape.units import NS_PER_S, format_duration
from loadshape.validity import Limits
from loadshape.version import __version__

CONNECT_S = 3.0
EXAMINE_S = 60.0
RAY_PORTS = range(10_002, 20_000)  # `ray start` lets its workers listen there; its head is at 6379
ROOT = Path("/")


class Sheet(msgspec.Struct, frozen=True):
    """What was found on one node."""

    node: str
    findings: list[Finding]


class Row(msgspec.Struct, frozen=True):
    """One finding, and the nodes that share it."""

    nodes: list[str]
    finding: Finding


def survey_nodes(address: str, targets: Sequence[Target] = (), folder: Path | None = None) -> list[Sheet]:
    """Examine each node of the Ray cluster at *address* that has a CPU to send with, in the order of their addresses.

    Logs would be written below *folder* there, by default the folder for temporary files. Raises InputError and
    ReplayError naming the node.
    """
    roads, token = list_roads(targets), make_token()
    launcher = RayLauncher(nodes=count_nodes(address), address=address)
    with launcher.place(1, token) as (ray, members):
        calls = [(it, it.hand.__ray_call__.remote(examine_node, roads, folder)) for it in members]
        found = [get_answer(ray, member, call, timeout_s=EXAMINE_S) for member, call in calls]
        facts = [(it.node, it.address, it.facts) for it in members if it.facts is not None]
        sounder = Sounder({node: (where, it.port) for node, where, it in facts}, token)
        bursts = [sounder.sound(node) for node, _, _ in facts]
    told = sorted(zip(facts, found, bursts, strict=True), key=lambda it: ip_address(it[0][1]).packed)
    return [
        Sheet(f"{it.name} ({where})", [*findings, find_versions(it), find_niceness(it), find_distance(it, burst)])
        for (_, where, it), findings, burst in told
    ]


def examine_node(_agent: object, roads: Sequence[tuple[str, int]], folder: Path | None) -> list[Finding]:
    """Return what is to be known of the node on which this runs, before it takes a part in a run."""
    findings = examine(folder or Path(tempfile.gettempdir()))
    return [*findings, find_ray_ports(ROOT), *map(find_road, roads)]


def list_roads(targets: Iterable[Target]) -> list[tuple[str, int]]:
    """Return the addresses and ports that connections to *targets* would go to. Raises TargetError."""
    # One connection that says nothing is no load: who may be loaded is the replay's question.
    looked = [Target(it.url, allow_public=it.host, max_rate_hz=1) for it in targets]
    return list(dict.fromkeys((address, it.port) for it in looked for address in it.resolve()))


def find_road(road: tuple[str, int]) -> Finding:
    """Whether an address of a target lets us connect, tried once."""
    name, begun_s = f"target {road[0]} port {road[1]}", time.monotonic()
    try:
        socket.create_connection(road, CONNECT_S).close()
    except OSError as problem:
        why = problem.strerror or f"no answer in {CONNECT_S:.0f} s"
        return Finding(name, "bad", why, "open the way from there: server, firewall, security group, NetworkPolicy")
    return Finding(name, "ok", f"connected in {format_duration(time.monotonic() - begun_s)}")


def find_ray_ports(root: Path) -> Finding:
    """Whether connections of a run may take ports at which Ray wants to listen."""
    try:
        first, last = map(int, (root / "proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        reserved = (root / "proc/sys/net/ipv4/ip_local_reserved_ports").read_text().strip()
    except OSError:
        return Finding("ports of Ray", "ok", "not told")
    spans = [span.partition("-") for span in reserved.split(",") if span]
    kept = {port for low, _, high in spans for port in range(int(low), int(high or low) + 1)}
    free = [port for port in RAY_PORTS if first <= port <= last and port not in kept]
    measured = f"connections take {first} to {last}, Ray listens at {RAY_PORTS[0]} to {RAY_PORTS[-1]}"
    if not free:
        return Finding("ports of Ray", "ok", measured)
    remedy = f"sysctl -w net.ipv4.ip_local_reserved_ports=6379,{RAY_PORTS[0]}-{RAY_PORTS[-1]}"
    return Finding("ports of Ray", "mind", measured, remedy)


def find_versions(facts: Facts) -> Finding:
    """Whether a node runs what the coordinator runs."""
    here, there = describe_host(), facts.environment
    ours = {"loadshape": __version__, "Python": here["python"], **here["packages"]}
    theirs = {"loadshape": facts.version, "Python": there.get("python"), **dict(_get_packages(there))}
    other = [f"{name} {theirs.get(name)}, here {ours[name]}" for name in ours if theirs.get(name) != ours[name]]
    if not other:
        return Finding("versions", "ok", f"loadshape {__version__}, {here['python']}")
    status: Status = "mind" if facts.version == __version__ else "bad"
    return Finding("versions", status, "; ".join(other), "install the same everywhere: one image, or constraints.txt")


def find_niceness(facts: Facts) -> Finding:
    """Whether workers on a node would let everybody else go first."""
    if facts.niceness <= 0:
        return Finding("niceness", "ok", f"{facts.niceness}")
    remedy = "export RAY_worker_niceness=0 before ray start: its default is 15"
    return Finding("niceness", "bad", f"{facts.niceness}: everything else goes first", remedy)


def find_distance(facts: Facts, burst: Burst) -> Finding:
    """How far a node's stamps may be from the coordinator's, by one burst of pings."""
    if burst.bound_ns is None:
        return Finding("clock of the node", "bad", "answers no ping", f"let UDP through to {facts.name}, any port")
    apart_s, limits = 2 * burst.bound_ns / NS_PER_S, Limits()
    measured = f"stamps up to {format_duration(apart_s)} apart; {burst.heard} of {burst.sent} pings"
    if apart_s <= limits.node_clock_s:
        return Finding("clock of the node", "ok", measured)
    status: Status = "mind" if apart_s <= limits.node_figures_s else "bad"
    return Finding("clock of the node", status, measured, "use machines that are nearer, or a quieter network")


def merge_sheets(sheets: Sequence[Sheet]) -> list[Row]:
    """Return the findings of all nodes, those that are alike once, in the order of the examinations."""
    groups: dict[str, dict[tuple[str, ...], list[tuple[str, Finding]]]] = {}
    for sheet in sheets:
        for it in sheet.findings:
            key = (it.status, it.remedy, "" if it.status == "ok" else it.measured)
            groups.setdefault(it.name, {}).setdefault(key, []).append((sheet.node, it))
    return [_merge(found) for named in groups.values() for found in named.values()]


def _merge(found: list[tuple[str, Finding]]) -> Row:
    nodes, findings = [node for node, _ in found], [finding for _, finding in found]
    first = findings[0]
    if any(it.measured != first.measured for it in findings):
        first = msgspec.structs.replace(first, measured=f"{first.measured}; the others are ok, too")
    return Row(nodes, first)


def _get_packages(environment: dict[str, object]) -> dict[str, object]:
    packages = environment.get("packages")
    return packages if isinstance(packages, dict) else {}
