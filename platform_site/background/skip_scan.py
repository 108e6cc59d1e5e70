def skip_scan(name: str, table: str, *columns: str, where: str = "true") -> str:
    """A common table expression for `WITH RECURSIVE` that steps through an index, past large backlogs. Of the rows that
    match `where`, `name` has the first one for each value of the first of `columns`. It orders by all of them, so that
    the planner uses their index."""
    key, listed = columns[0], ", ".join(columns)
    return f"""{name} AS (
    (SELECT {listed} FROM {table} WHERE {where} ORDER BY {listed} LIMIT 1)
    UNION ALL
    SELECT following.*
      FROM {name}, LATERAL (
           SELECT {listed} FROM {table} WHERE {where} AND {key} > {name}.{key} ORDER BY {listed} LIMIT 1) AS following
)"""  # noqa: S608 - constants
