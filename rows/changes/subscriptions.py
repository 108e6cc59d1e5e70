"""What a stream subscribes to, and which changes concern it under the current rules."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from platform_site.http import exact_json
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from rows.events.payloads import columns_by_table
from rows.query import params
from rows.query import where as query_where
from rows.query.context import QueryContext, run
from rows.query.schema_cache import CompiledSchema
from rows.rules.conditions import NO_FILTER, And, Compare, Condition, Filter, Path, Variable, hops_of
from rows.rules.principal import Principal, resolve

MAX_SUBSCRIPTIONS: Final = 20
FIELDS: Final = frozenset({"table", "where", "columns", "with"})


@dataclass(slots=True)
class Subscription:
    """As requested, and as compiled for the current rules and caller."""

    name: str
    table: str
    where: Any
    columns: Any
    withs: Any = None
    chosen: tuple[str, ...] | None = None
    filter: Filter = NO_FILTER
    """`where`, if a record alone decides it; NO_FILTER if it depends on other rows."""
    is_decided_by_record: bool = True
    """Whether neither the rule nor `where` nor `with` depends on other rows."""
    related: dict[str, set[str]] = field(default_factory=dict)
    """The columns of other rows that the rule and `where` read or `with` embeds, by table."""
    indirect_columns: set[str] = field(default_factory=set)
    """The columns of its own rows through which `with` reads, and of `where` if that depends on other rows. A row whose
    shown cells are equal may look different, or match now, after a change of these."""
    embedded: frozenset[str] = frozenset()
    """The fields of a row that `with` adds."""
    required_cell: tuple[str, str] | None = None
    """A column, and the text that it has in every row that the caller may read."""
    needs_reset: bool = False
    reset_at: float = 0.0
    key: str = field(init=False)
    """Equal for equal subscriptions."""

    def __post_init__(self) -> None:
        self.key = exact_json.dumps([self.table, self.where, self.columns, self.withs])

    def compile(self, context: QueryContext) -> None:
        """Raises NotFound (no such table for this caller) and ValidationFailed."""
        context.readable(self.table)
        where = query_where.parse_where(self.where, self.table, context.resolver)
        withs = params.parse_with(self.withs, self.table, context.resolver)
        self.chosen, withs = params.parse_columns(self.columns, self.table, context.resolver, withs)
        self.embedded = frozenset(name for one in withs for name in (one.name, f"{one.name}_next"))
        self.related = defaultdict(set)
        self._relate(self.table, [where.shape, *_rule(context, self.table)])
        for hop in hops_of(where.shape):  # a filter sees what the caller may read there
            self._relate(hop.table, _rule(context, hop.table))
        self.indirect_columns = set()
        self._relate_embedded(context, withs, self.indirect_columns)
        self.is_decided_by_record = not self.related and not withs
        self.required_cell = _required_cell(context, self.table)
        has_hops = any(hops_of(where.shape))
        self.filter = NO_FILTER if has_hops else where
        if has_hops:
            self.indirect_columns |= columns_by_table([where.shape], self.table)[self.table]

    def _relate(self, table: str, conditions: Sequence[Condition]) -> None:
        """Add the columns of related tables that conditions on `table` read."""
        used = columns_by_table(conditions, table)
        reached = {hop.table for condition in conditions for hop in hops_of(condition)}
        for name in reached | ({table} & self.related.keys()):
            self.related[name] |= used[name]

    def _relate_embedded(self, context: QueryContext, withs: params.Withs, columns: set[str]) -> None:
        """Add the columns of other rows that `withs` embeds, and those that decide whether they are visible; to
        `columns`, those through which they are found."""
        for one in withs:
            if isinstance(one, params.WithUser):
                columns.add(one.column)
            else:
                hop = one.hop
                columns.add("id" if hop.many else hop.column)
                rule = context.compiled.rules.access(hop.table, context.role_key).read
                shown = one.columns
                if shown is None:
                    shown = rule.columns if rule else ()
                self.related[hop.table] |= {*shown, hop.column if hop.many else "id"}
                self._relate(hop.table, _rule(context, hop.table))
                self._relate_embedded(context, one.inside, self.related[hop.table])


def _rule(context: QueryContext, table: str) -> list[Condition]:
    rule = context.compiled.rules.access(table, context.role_key).read
    return [] if rule is None else [grant.where for grant in rule.grants]


def _required_cell(context: QueryContext, table: str) -> tuple[str, str] | None:
    rule = context.compiled.rules.access(table, context.role_key).read
    if rule is None:
        return None
    for part in rule.where.conditions if isinstance(rule.where, And) else (rule.where,):
        match part:
            case Compare(Path((), column), "eq", Variable(name, form="plain") as variable) if name.startswith("user."):
                value = resolve(variable, context.principal)
                if isinstance(value, str):
                    return column, value
    return None


def read_subscriptions(body: Mapping[str, Any]) -> list[Subscription]:
    """Raises ValidationFailed."""
    requested = body.get("subscriptions")
    if not isinstance(requested, dict) or not 1 <= len(requested) <= MAX_SUBSCRIPTIONS:
        message = f"Must be an object of 1 to {MAX_SUBSCRIPTIONS} subscriptions by name."
        raise ValidationFailed.of("subscriptions", "invalid", message)
    errors, found = [], []
    for name, each in requested.items():
        path = f"subscriptions.{name[:64]}"
        if not name.isascii() or not name.isidentifier() or len(name) > 64:
            errors.append(FieldError(path, "invalid", "A name has at most 64 letters, digits and underscores."))
        elif not isinstance(each, dict) or not isinstance(each.get("table"), str):
            errors.append(FieldError(path, "invalid", 'Must be an object with "table".'))
        elif unknown := each.keys() - FIELDS:
            message = f"There is no such field. The fields are {', '.join(sorted(FIELDS))}."
            errors += [FieldError(f"{path}.{field[:64]}", "unknown_field", message) for field in sorted(unknown)]
        else:
            found.append(Subscription(name, each["table"], each.get("where"), each.get("columns"), each.get("with")))
    if errors:
        raise ValidationFailed(fields=errors)
    return found


def compile_subscriptions(
    environment: EnvironmentRef, principal: Principal, subscriptions: Sequence[Subscription]
) -> CompiledSchema:
    """Returns the schema for which they are compiled now. Raises NotFound, ValidationFailed."""

    def compile_all(context: QueryContext) -> CompiledSchema:
        for each in subscriptions:
            try:
                each.compile(context)
            except ValidationFailed as error:
                path = f"subscriptions.{each.name}"
                fields = [replace(field, field=f"{path}.{field.field}") for field in error.fields]
                raise ValidationFailed(fields=fields) from None
        context.verify()
        return context.compiled

    return run(environment, principal, compile_all)
