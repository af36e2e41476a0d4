# What was seen beside the traffic while a run went on: numbers that servers and GPUs tell of themselves.
#
# Law: samples as they were told, in long form, nothing computed: one row a number, under the name and the labels that
# its owner gives it. When it was taken is an interval, as a question takes time: the number was right at some instant
# within width_ns / 2 of at_ns. Counters are kept as counters: a row that is lost costs nothing. The labels are one
# JSON object with sorted keys, since every name has its own.
#
#     NAME.log/server.arrows    an Arrow stream that is appended to: a killed run loses its last samples, no more
#
# `target` is the number of the target whose server said it; null where this host did (its GPUs). Times are ns since T0
# of the run, those before it negative: the first samples are taken before anything is sent.

"""Observations: the Arrow stream of samples that were taken of servers and GPUs during a run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from loadshape.log import SERVER_NAME as NAME
from loadshape.shard import read_stream

__all__ = ["NAME", "SAMPLES", "read_samples"]

SAMPLES = pa.schema(
    [
        pa.field("target", pa.uint16()),  # null: this host
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("width_ns", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("labels", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)


def read_samples(folder: Path) -> pa.Table:
    """Return the samples of the log at *folder*, none where it has no such file. Raises LogError for a damaged one."""
    path = folder / NAME
    return read_stream(path, SAMPLES) if path.is_file() else SAMPLES.empty_table()
