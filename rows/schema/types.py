from typing import Literal

Type = Literal[
    "text",
    "bigint",
    "numeric",
    "float8",
    "boolean",
    "date",
    "timestamptz",
    "uuid",
    "jsonb",
    "text[]",
    "bigint[]",
    "numeric[]",
    "float8[]",
    "boolean[]",
    "date[]",
    "timestamptz[]",
    "uuid[]",
]
