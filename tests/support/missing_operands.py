"""Missing operands, and a clause for each operator that uses one."""

from typing import Any

CLAIMS: dict[str, Any] = {
    "missing": {},
    "null": {"x": None},
    "empty list": {"x": []},
    "empty text": {"x": ""},
    "empty object": {"x": {}},
}


def uses(operand: Any, listed: Any) -> dict[str, list[Any]]:
    """Each operator in clauses that lean on `operand` (and `listed` where a list is asked for)."""
    return {
        "$eq": [{"team": operand}, {"level": {"$eq": operand}}, {"meta": {"$eq": operand}}, {"tags": {"$eq": listed}}],
        "$ne": [{"team": {"$ne": operand}}, {"meta": {"$ne": operand}}, {"tags": {"$ne": listed}}],
        "$gt": [{"level": {"$gt": operand}}],
        "$gte": [{"level": {"$gte": operand}}],
        "$lt": [{"level": {"$lt": operand}}],
        "$lte": [{"level": {"$lte": operand}}],
        "$between": [{"level": {"$between": [operand, operand]}}, {"level": {"$between": [0, operand]}}],
        "$in": [{"team": {"$in": listed}}, {"level": {"$in": listed}}],
        "$nin": [{"team": {"$nin": listed}}, {"level": {"$nin": listed}}],
        "$like": [{"team": {"$like": operand}}],
        "$ilike": [{"team": {"$ilike": operand}}],
        "$ieq": [{"team": {"$ieq": operand}}],
        "$iin": [{"team": {"$iin": [operand]}}],
        "$contains": [{"team": {"$contains": operand}}, {"meta": {"$contains": operand}}],
        "$icontains": [{"team": {"$icontains": operand}}],
        "$startsWith": [{"team": {"$startsWith": operand}}],
        "$istartsWith": [{"team": {"$istartsWith": operand}}],
        "$endsWith": [{"team": {"$endsWith": operand}}],
        "$iendsWith": [{"team": {"$iendsWith": operand}}],
        "$has": [{"tags": {"$has": operand}}, {"meta": {"$has": operand}}],
        "$hasAny": [{"tags": {"$hasAny": listed}}, {"meta": {"$hasAny": listed}}],
        "$hasAll": [{"tags": {"$hasAll": listed}}, {"meta": {"$hasAll": listed}}],
        "$search": [{"team": {"$search": operand}}, {"$search": operand}],
        "$not": [
            {"$not": {"team": operand}},
            {"level": {"$not": {"$gt": operand}}},
            {"$not": {"$not": {"team": operand}}},
        ],
        "$and": [{"$and": [{"team": operand}, {"body": "x"}]}, {"$not": {"$and": [{"team": operand}]}}],
        "$or": [{"$or": [{"team": operand}, {"body": "y"}]}, {"$not": {"$or": [{"team": operand}, {"body": "y"}]}}],
        "$some": [{"task": {"$some": {"title": operand}}}, {"task": {"$some": {"title": {"$ne": operand}}}}],
        "$none": [{"task": {"$none": {"title": operand}}}, {"task": {"$none": {"title": {"$nin": listed}}}}],
        "$every": [{"task": {"$every": {"title": operand}}}, {"task": {"$every": {"$not": {"title": operand}}}}],
        "$null": [],  # takes no operand but true and false
    }
