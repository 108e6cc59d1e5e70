from rows.query.aggregates.service import aggregate_rows
from rows.query.explain import explain_row
from rows.query.service import ListQuery, Page, RowResult, list_rows, retrieve_row
from rows.write.bulk import BulkQuery, Changed, delete_rows, update_rows
from rows.write.service import delete_row, insert_row, insert_rows, update_row
from rows.write.upserts import Upserted, upsert_row, upsert_rows

__all__ = [
    "BulkQuery",
    "Changed",
    "ListQuery",
    "Page",
    "RowResult",
    "Upserted",
    "aggregate_rows",
    "delete_row",
    "delete_rows",
    "explain_row",
    "insert_row",
    "insert_rows",
    "list_rows",
    "retrieve_row",
    "update_row",
    "update_rows",
    "upsert_row",
    "upsert_rows",
]
