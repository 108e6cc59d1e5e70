"""How much of the disk the ended runs of an environment take, known by a sample of them.

To add all of them up one would read them all, and to keep a sum every end would wait for the one before. So a run that
ends is weighed with a probability: once in UNIT / size times it stands for UNIT bytes of history; one that is larger
than UNIT stands for what it has, always. The sum of the weights is about the sum of the sizes (of 2 GB within some
5 %), and the index of those that are weighed, `run_weighed`, has an entry for each UNIT of history, however small the
runs are.

Those of visitors are not weighed: how many of them are kept is another bound (`functions.runs.retention`). SQL, for the
statements that end runs.
"""

from typing import Final

UNIT: Final = 2**20
"""Bytes."""
ROW: Final = 1024
"""Bytes of a run without its texts, and of its entries in indexes."""


def weighed(size: str, caller_kind: str) -> str:
    """What goes into `weight` of a run that ends with texts of so many bytes. Both are SQL, worked out repeatedly."""
    whole = f"({ROW} + {size})"
    return f"CASE WHEN {caller_kind} <> 'anonymous' AND random() * {UNIT} < {whole} THEN greatest({whole}, {UNIT}) END"
