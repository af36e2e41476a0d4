# When requests become due.
#
# Law: an arrival process is a pure value. It has no clock, never sleeps and owns no generator: for a
# generator and a duration it returns due times as an array, and the trace stores them. What is replayed
# is that array. Extending needs no base class: a process is anything with the two methods of `Arrival`.
#
#     superposition   the protocol, sums of processes, what theory expects of them
#     renewal         independent gaps: Constant, Poisson, Gamma, Weibull; a Burst
#     rate            a rate that changes as it is told to: Rate, Sinusoid, Diurnal, Windows
#     modulated       a rate that changes at random: Mmpp, OnOff
#     hawkes          arrivals that bring arrivals
#     recorded        arrivals that happened
#     rescaling       how a unit-rate process becomes one of any rate; columns: numbers from a CSV file
#
# What all keep: the arrivals of a run are those in [0, d), never rescaled to hit a count or an end; a longer
# run begins with the shorter one; a stationary process starts as if it had always been running; the same
# seed gives the same array on every machine.

"""Arrival processes as values, and their superposition."""

from loadshape.arrival.hawkes import Hawkes
from loadshape.arrival.modulated import Mmpp, OnOff
from loadshape.arrival.rate import Diurnal, Rate, Sinusoid, Window, Windows
from loadshape.arrival.recorded import Recorded
from loadshape.arrival.renewal import MAX_RATE_HZ, Burst, Constant, Gamma, Poisson, Weibull
from loadshape.arrival.superposition import (
    Arrival,
    Superposition,
    expect_dispersion,
    expect_gap_cv,
    measure_offered_hz,
    superpose,
)

# Every process that a recipe can name, by its key `process`.
PROCESSES = (
    Constant,
    Poisson,
    Gamma,
    Weibull,
    Burst,
    Mmpp,
    OnOff,
    Hawkes,
    Rate,
    Sinusoid,
    Diurnal,
    Windows,
    Recorded,
)

__all__ = [
    "MAX_RATE_HZ",
    "PROCESSES",
    "Arrival",
    "Burst",
    "Constant",
    "Diurnal",
    "Gamma",
    "Hawkes",
    "Mmpp",
    "OnOff",
    "Poisson",
    "Rate",
    "Recorded",
    "Sinusoid",
    "Superposition",
    "Weibull",
    "Window",
    "Windows",
    "expect_dispersion",
    "expect_gap_cv",
    "measure_offered_hz",
    "superpose",
]
