"""The size of an environment's run history, estimated from a sample: summing up all runs would read them all, and a
running total would serialise their ends. Once in UNIT / size times a run that ends represents UNIT bytes of history.
The sum is exact within some 5 % for 2 GB. The number of anonymous callers' runs is limited instead."""

from typing import Final

UNIT: Final = 2**20
"""Bytes."""
ROW: Final = 1024
"""Bytes of a run without its texts, including its index entries."""


def sampled_size(size: str, caller_kind: str) -> str:
    """The `weight` of a run that ends with texts of `size` bytes, as SQL."""
    whole = f"({ROW} + {size})"
    return f"CASE WHEN {caller_kind} <> 'anonymous' AND random() * {UNIT} < {whole} THEN greatest({whole}, {UNIT}) END"
