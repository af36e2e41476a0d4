# Where every random number of loadshape comes from.
#
# Law: the only thing taken from numpy is the bit stream of PCG64, as doubles of 53 bits. Everything else
# (an order, an exponential, a normal, a gamma variate) is arithmetic in this file. numpy promises that
# the stream of a named bit generator stays the same, and promises nothing for its distributions
# (NEP 19), so a trace would otherwise change its digest with numpy's version.
#
# A seed has named streams: "arrivals", "content", "lengths.inputs", ... Each is a SeedSequence of its
# own, so that one more stream, or one more draw from it, leaves all others as they were. The streams
# differ by name and not by position: adding one in the middle changes nothing either.
#
# Transcendental functions differ in the last bit between instruction sets (AVX2 and AVX-512, say).
# Whoever draws rounds to integers (microseconds, tokens) before anything is added up, so a difference of
# one bit is gone unless it falls on the very edge of a rounding step.
#
# Gamma variates: Marsaglia & Tsang, "A simple method for generating gamma variables" (2000), with their
# boost U^(1/k) for shapes below 1. Normal variates: Box & Muller (1958), two doubles for each.

"""Named random streams of a seed, and draws that are the same on every machine."""

from __future__ import annotations

import numpy as np

from loadshape.bounds import check_count
from loadshape.stats import Floats, Integers


def open_stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the stream *name* of *seed* (>= 0): the same one for the same two, always."""
    check_count("seed", seed, least=0, remedy="such as 7")
    sequence = np.random.SeedSequence(int(seed), spawn_key=tuple(name.encode()))
    return np.random.Generator(np.random.PCG64(sequence))


def derive_seed(seed: int, name: str) -> int:
    """Return the seed of a part that has named streams of its own, such as a class of traffic; below 2^63."""
    return int(open_stream(seed, name).bit_generator.random_raw()) >> 1


def fork_stream(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator for a second decision of the same value, seeded by the next two doubles of *rng*."""
    seeds = [int(value) for value in np.floor(rng.random(2) * 2.0**53)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


def draw_order(rng: np.random.Generator, n: int) -> Integers:
    """Return the numbers 0 to n - 1 in random order."""
    return np.argsort(rng.random(n), kind="stable")


def draw_exponentials(rng: np.random.Generator, n: int) -> Floats:
    """Return *n* exponential variates of mean 1; one double for each."""
    return -np.log1p(-rng.random(n))


def draw_normals(rng: np.random.Generator, n: int) -> Floats:
    """Return *n* standard normal variates; two doubles for each, so a longer draw begins like a shorter one."""
    return turn_normal(rng.random((n, 2)))


def turn_normal(pairs: Floats) -> Floats:
    """Return a standard normal variate for each of n pairs of doubles in [0, 1), an array of n x 2."""
    return np.sqrt(-2.0 * np.log1p(-pairs[:, 0])) * np.cos(2.0 * np.pi * pairs[:, 1])


def draw_gammas(rng: np.random.Generator, shape: float, n: int) -> Floats:
    """Return *n* gamma variates of this *shape* > 0 and scale 1."""
    lifted = shape if shape >= 1.0 else shape + 1.0
    accepted = [np.empty(0)]
    while sum(map(len, accepted)) < n:
        accepted.append(_try_gammas(rng, lifted, n))
    values = np.concatenate(accepted)[:n]
    return values if shape >= 1.0 else values * rng.random(n) ** (1.0 / shape)


def _try_gammas(rng: np.random.Generator, shape: float, n: int) -> Floats:
    d = shape - 1.0 / 3.0
    x = draw_normals(rng, n)
    u = 1.0 - rng.random(n)  # in (0, 1]: its logarithm is finite
    v = (1.0 + x / np.sqrt(9.0 * d)) ** 3
    inside = v > 0.0
    x, u, v = x[inside], u[inside], v[inside]
    accepted = np.log(u) < 0.5 * x * x + d - d * v + d * np.log(v)
    return np.asarray(d * v[accepted])
