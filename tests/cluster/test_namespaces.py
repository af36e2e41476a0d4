# Three hosts with clocks that are hours apart, read from a fourth. Their true offsets are known, since a time
# namespace is ahead by whole seconds; latencies are emulated, in both directions alike or not.

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hosts import Host, building, find_obstacle, telling

from loadshape.cluster.beacon import Sounder, make_token
from loadshape.cluster.synchrony import estimate_offset
from loadshape.nodes import Burst

pytestmark = pytest.mark.slow

AHEAD_S = (3_600, 86_400, 7)
EVEN_NS = 50_000  # the largest error that is allowed where both ways take the same time


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    with building(AHEAD_S) as hosts:
        yield hosts


def read(hosts: list[Host], ways: list[tuple[float, float]], bursts: int = 3) -> list[list[Burst]]:
    """Return readings of all hosts, each behind a way (out_s, back_s)."""
    token = make_token()
    with contextlib.ExitStack() as made:
        places = [
            made.enter_context(telling(host, token, out_s=out_s, back_s=back_s))
            for host, (out_s, back_s) in zip(hosts, ways, strict=True)
        ]
        for host, place in zip(hosts, places, strict=True):
            assert abs(place.offset_ns + host.ahead_s * 10**9) <= place.width_ns, "the namespace is not what it claims"
        sounder = Sounder({at: (place.address, place.port) for at, place in enumerate(places)}, token)
        for _ in range(bursts):
            sounder.sound_all()
    return [sounder.bursts[at] for at in range(len(hosts))]


@pytest.mark.parametrize(
    "ways",
    [
        [(0, 0), (0, 0), (0, 0)],
        [(0.0002, 0.0002), (0.001, 0.001), (0.005, 0.005)],
        [(0.001, 0.0001), (0.0001, 0.001), (0.01, 0)],
    ],
    ids=["a switch", "as far as it is back", "farther one way"],
)
def test_the_measured_offset_is_the_injected_one(hosts: list[Host], ways: list[tuple[float, float]]) -> None:
    for host, (out_s, back_s), bursts in zip(hosts, ways, read(hosts, ways), strict=True):
        true_ns = -host.ahead_s * 10**9
        for burst in bursts:
            assert burst.offset_ns is not None
            assert burst.bound_ns is not None
            assert abs(burst.offset_ns - true_ns) <= burst.bound_ns
            assert burst.bound_ns >= (out_s + back_s) / 2 * 1e9
        found = estimate_offset(bursts, bursts[-1].at_ns)
        assert found is not None
        assert abs(found[0] - true_ns) <= found[1]
        lean_ns = (back_s - out_s) / 2 * 1e9  # a way back that takes longer makes the node's clock look late
        assert abs(found[0] - true_ns - lean_ns) <= EVEN_NS
