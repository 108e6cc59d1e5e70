"""The size of an environment's run history, estimated from a sample. Summing up all runs would read them all, and a
running total would serialise their ends. So a run that ends is sampled with a probability: once in UNIT / size times it
represents UNIT bytes of history; a run larger than UNIT always represents its own size. The sum of the sample
approximates the sum of all sizes (within some 5 % for 2 GB), and the index `run_size_sample` has about one entry per
UNIT of history, however small the runs are. Anonymous callers' runs are not sampled: their number is limited
(`functions.runs.retention`). The result is SQL, for the statements that end runs."""

from typing import Final

UNIT: Final = 2**20
"""Bytes."""
ROW: Final = 1024
"""Bytes of a run without its texts, including its index entries."""


def sampled_size(size: str, caller_kind: str) -> str:
    """The `weight` of a run that ends with texts of `size` bytes, as SQL."""
    whole = f"({ROW} + {size})"
    return f"CASE WHEN {caller_kind} <> 'anonymous' AND random() * {UNIT} < {whole} THEN greatest({whole}, {UNIT}) END"
