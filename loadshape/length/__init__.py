# How long prompts and answers are, in tokens.
#
# Law: a length distribution is a pure value with one method: for a generator and a number it returns as
# many whole lengths of at least one token. Extending needs no base class. Whose tokens they are is said
# by the trace's tokenizer, not here.
#
#     distribution   one length at a time: prompts, or answers
#     joint          prompt and answer together; the context that both have to fit into
#
# Inputs and outputs given by two distributions are independent, which is right for chat and wrong for
# retrieval, where long contexts go with long answers (rank correlation 0.42 in RAGPulse; nearly 0 in the
# Azure 2023 traces). Traffic that leaves both to the fixture keeps prompt and answer together as a pair.

"""Lengths as values: distributions of one length, and joint ones of a prompt and its answer."""

from loadshape.length.distribution import (
    MAX_TOKENS,
    Empirical,
    Fixed,
    Histogram,
    Length,
    LogNormal,
    Normal,
    Pairs,
    ParetoMix,
    Uniform,
)
from loadshape.length.joint import Context, Correlated, Grid, Joint, Observed

DISTRIBUTIONS = (Fixed, Uniform, Normal, LogNormal, ParetoMix, Histogram, Empirical)
JOINTS = (Observed, Grid, Correlated)

__all__ = [
    "DISTRIBUTIONS",
    "JOINTS",
    "MAX_TOKENS",
    "Context",
    "Correlated",
    "Empirical",
    "Fixed",
    "Grid",
    "Histogram",
    "Joint",
    "Length",
    "LogNormal",
    "Normal",
    "Observed",
    "Pairs",
    "ParetoMix",
    "Uniform",
]
