"""Resolves API paths by a table of `urlpatterns`, by their first two words and length, instead of trying one pattern
after the other (20 µs, 10 % of reading a row). What the table cannot hold or find is left to Django."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver
from django.urls.converters import StringConverter
from django.urls.resolvers import RoutePattern

_Head = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Route:
    literals: tuple[tuple[int, str], ...]
    """By index; without the first two, which are in the table's key."""
    variables: tuple[tuple[int, str], ...]
    match: dict[str, Any]

    def resolve(self, words: list[str]) -> ResolverMatch | None:
        for index, literal in self.literals:
            if words[index] != literal:
                return None
        values = {name: words[index] for index, name in self.variables}
        if "" in values.values():
            return None
        made = ResolverMatch.__new__(ResolverMatch)  # its constructor computes `match` again
        made.__dict__ = {**self.match, "kwargs": values, "captured_kwargs": values}
        return made


class Routes:
    def __init__(self, resolver: URLResolver) -> None:
        self._resolver = resolver
        self._routes: dict[tuple[_Head, int], list[_Route]] = {}
        self._left_to_django: set[_Head] = set()
        self._add_patterns(resolver.url_patterns, "")

    def resolve(self, path: str) -> ResolverMatch:
        words = path[1:].split("/")
        if path[:1] == "/":
            for route in self._routes.get((tuple(words[:2]), len(words)), ()):
                found = route.resolve(words)
                if found is not None:
                    return found
        return self._resolver.resolve(path)

    def _add_patterns(self, patterns: list[URLPattern | URLResolver], before: str) -> None:
        for pattern in patterns:
            route = pattern.pattern
            text = before + str(route)
            if not isinstance(route, RoutePattern):
                self._leave_to_django(before)
            elif isinstance(pattern, URLResolver):
                if pattern.namespace or pattern.app_name or pattern.default_kwargs:
                    self._leave_to_django(text)
                else:
                    self._add_patterns(pattern.url_patterns, text)
            else:
                self._add(pattern, text)

    def _add(self, pattern: URLPattern, text: str) -> None:
        words = text.split("/")
        converters = pattern.pattern.converters
        literals, variables = [], []
        for index, word in enumerate(words):
            name = word.removeprefix("<str:").removesuffix(">")
            if "<" not in word:
                literals.append((index, word))
            elif word == f"<str:{name}>" and type(converters.get(name)) is StringConverter:
                variables.append((index, name))
            else:
                return self._leave_to_django(text + "/")
        if pattern.default_args or any(index < 2 for index, _ in variables):
            return self._leave_to_django(text + "/")
        if any(tuple(words[:count]) in self._left_to_django for count in range(3)):
            return None
        match = ResolverMatch(pattern.callback, (), {}, pattern.name, route=text, extra_kwargs={})
        key = (tuple(words[:2]), len(words))
        made = _Route(tuple(pair for pair in literals if pair[0] >= 2), tuple(variables), dict(vars(match)))
        self._routes.setdefault(key, []).append(made)
        return None

    def _leave_to_django(self, text: str) -> None:
        words = text.split("/")
        whole = [word for word in words[:-1] if "<" not in word][:2]
        self._left_to_django.add(tuple(whole) if words[: len(whole)] == whole else ())


_routes_of: Final = lru_cache(maxsize=1)(Routes)


def resolve(path: str) -> ResolverMatch:
    resolver = get_resolver()
    return _routes_of(resolver).resolve(path) if settings.FASTPATH else resolver.resolve(path)
