"""`ApiViewSet`: the base class of all API endpoints, a DRF viewset without negotiation, renderers and browsable pages.
A request is processed as method → caller → scope → query parameters → action, which returns finished bytes.
docs/how-to/extend.md, docs/explanation/performance.md."""

from collections.abc import Callable, Mapping
from functools import update_wrapper
from http.cookies import SimpleCookie
from typing import Any, ClassVar, Literal

import orjson
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders
from django.utils.functional import cached_property
from rest_framework.request import Empty, Request
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import ViewSet

from platform_site.concurrency import loop_requests, server_hints
from platform_site.http import bodies, exception_handler, fields
from platform_site.http.errors import ApiError, MethodNotAllowed, ProjectSuspended, Unauthorized, ValidationFailed
from platform_site.http.requests import read_parameters, site_of
from platform_site.identity import call_depth
from platform_site.identity.callers import APP_USERS, Caller, EnvironmentRef
from platform_site.postgres import sqlstates
from platform_site.postgres.base import commits_of_this_thread
from platform_site.postgres.replicas import Freshness

LIST_PARAMETERS = frozenset({"limit", "cursor"})
MAX_RUNS = 3


def encode(data: Any) -> bytes:
    """`fields.JSONField` has already rejected integers beyond 64 bits."""
    return orjson.dumps(data)


class JsonResponse(HttpResponse):
    """As `HttpResponse`, in a fifth of the time (tests/api/test_fast_responses.py). Headers are printable ASCII."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        store = {"content-type": ("Content-Type", "application/json")}
        if headers:
            for name, value in headers.items():
                store[name.lower()] = (name, value)
        self.headers = made = ResponseHeaders.__new__(ResponseHeaders)
        made._store = store
        self.status_code = status
        self.closed = False
        self._container = [body]
        self._resource_closers: list[Callable[[], None]] = []
        self._charset = self._handler_class = self._reason_phrase = None

    @cached_property
    def cookies(self) -> SimpleCookie:  # type: ignore[override]
        return SimpleCookie()


def respond(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """`data` is anything orjson writes, or JSON as bytes."""
    return JsonResponse(data if type(data) is bytes else encode(data), status, headers)


def created(location: str, data: Any, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return respond(data, 201, {"Location": location, **(headers or {})})


def no_content() -> HttpResponse:
    response = HttpResponse(status=204)
    del response.headers["Content-Type"]
    return response


def is_replaced(error: ApiError | type[ApiError]) -> bool:
    """By `ApiViewSet.client_errors_as`."""
    kind = error if isinstance(error, type) else type(error)
    return 400 <= error.status < 500 and error.status not in (404, 405, 429) and not issubclass(kind, ProjectSuspended)


def no_store(response: HttpResponse) -> HttpResponse:
    response.headers["Cache-Control"] = "no-store"
    return response


class ApiRequest(Request):
    """Without negotiation and authentication."""

    def __init__(self, request: HttpRequest, view: "ApiViewSet") -> None:
        self._request = request
        self.parsers = self.authenticators = ()
        self.negotiator: Any = view
        self.parser_context = {"view": view, "request": self}  # the authenticator reads `environment_use`
        unread: Any = Empty
        self._data = self._full_data = self._files = self._content_type = self._stream = unread

    def set_caller(self, caller: Caller, credential: Any) -> Caller:
        self._user, self._auth = caller, credential
        if caller.kind not in APP_USERS:
            call_depth.trust_header(self._request.META)
        self._request.__dict__ |= {"user": caller, "auth": credential}
        return caller

    @property
    def data(self) -> Any:
        if self._full_data is Empty:
            self._load_data_and_files()
        return self._full_data

    def _load_data_and_files(self) -> None:
        view: ApiViewSet = self.parser_context["view"]
        self._data = self._full_data = bodies.read_request(self._request, long_floats=view.long_floats)
        self._files = {}


class ApiViewSet(ViewSet):
    required_scopes: ClassVar[Mapping[str, str | tuple[str, ...] | None]] = {}
    """By action: a scope, or several; None: any caller. An action without an entry does not start."""
    environment_use: ClassVar[Literal["required", "optional", "unused"]] = "required"
    """Whether a request needs an environment. Required: `self.environment` is set, or the response is 422. Optional:
    set if the caller has or names one; in a public viewset the request may name one. Unused: accounts have none."""
    public: ClassVar[bool] = False
    query_parameters: ClassVar[Mapping[str, frozenset[str]]] = {}
    """By action; others are 422. Default for `list`: `limit` and `cursor`; otherwise every name is accepted."""
    third_party_queries: ClassVar[bool] = False
    """Another party writes the query string; the action reads it."""
    also_raises: ClassVar[Mapping[str, tuple[type[ApiError], ...]]] = {}
    unsafe_reads: ClassVar[frozenset[str]] = frozenset()
    """GET actions that change something and cannot be repeated."""
    safe_posts: ClassVar[frozenset[str]] = frozenset()
    """POST actions that change nothing and can be repeated."""
    has_etag: ClassVar[frozenset[str]] = frozenset()
    optional_bodies: ClassVar[frozenset[str]] = frozenset()
    """Actions whose body may be missing: `read` and `read_object` return `{}`."""
    long_floats: ClassVar[bodies.LongFloats] = "rounded"
    client_errors_as: ClassVar[type[ApiError] | None] = None
    """Replaces client errors, except 404, 405, 429 and `project_suspended`: `InvalidGrant` at the token endpoint."""

    serializer_class: type[BaseSerializer[Any]] | None = None

    action: str
    request: ApiRequest
    http_request: HttpRequest
    """Django's, which `request` wraps."""
    query: dict[str, str]
    met_deadlock: bool = False
    """Whether this run repeats one that ended in a deadlock or serialization failure."""
    _caller: Caller | None = None

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeError(f"{type(self).__name__} is public and has no caller")
        return self._caller

    @property
    def environment(self) -> EnvironmentRef:
        environment = None if self._caller is None else self._caller.environment
        if environment is None:
            raise RuntimeError(f"{type(self).__name__} does not require an environment, and this request has none")
        return environment

    @property
    def freshness(self) -> Freshness | None:
        """What a replica must have replayed; None: only the primary may serve reads."""
        found: Freshness | None = self.http_request.__dict__.get("freshness")
        return found

    def read(self, serializer: type[BaseSerializer[Any]], **options: Any) -> dict[str, Any]:
        """The body, validated with `options` of the serializer (`partial=True`, `context=…`). Raises InvalidRequest,
        UnsupportedMediaType, PayloadTooLarge, and DRF's ValidationError naming all invalid fields."""
        checked = serializer(data=self.read_object(), **options)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def read_object(self) -> dict[str, Any]:
        left_out = self.action in self.optional_bodies and not self.http_request.body
        data = {} if left_out else self.request.data
        if not isinstance(data, dict):
            raise ValidationFailed.of(fields.WHOLE_BODY, "not_an_object", "The body must be a JSON object.")
        return data

    @classmethod
    def as_view(  # type: ignore[override]
        cls, actions: Mapping[str, str] | None = None, **initkwargs: Any
    ) -> Callable[..., HttpResponseBase]:
        bound = dict(actions or {})
        if not cls.public:
            for name in bound.values():
                if name not in cls.required_scopes:
                    raise ImproperlyConfigured(f"{cls.__name__}.required_scopes says nothing about {name!r}")
        described = super().as_view(dict[str, Any](bound), **initkwargs)
        if "get" in bound:
            bound.setdefault("head", bound["get"])
        allow = ", ".join(sorted(method.upper() for method in bound) + ["OPTIONS"])
        by_method = {method.upper(): name for method, name in bound.items()}

        def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            self = cls(**initkwargs)
            self.action_map = bound
            self.args, self.kwargs = args, kwargs
            self.headers = {}
            name = by_method.get(request.method or "")
            if name is None:
                return self._without_action(request, allow)
            self.action = name
            return self._answer(request, getattr(self, name))

        # What DRF and drf-spectacular look for on a view: cls, actions, initkwargs, csrf_exempt.
        update_wrapper(view, described, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        del view.__dict__["__wrapped__"]
        return view

    def _without_action(self, request: HttpRequest, allow: str) -> HttpResponseBase:
        if request.method == "OPTIONS":
            response = no_content()
            response.headers["Allow"] = allow
            return response
        return exception_handler.respond(MethodNotAllowed(f"This endpoint supports {allow}.", headers={"Allow": allow}))

    def _answer(self, request: HttpRequest, action: Callable[..., HttpResponseBase]) -> HttpResponseBase:
        """A read on a dead connection runs once more; a transaction aborted by PostgreSQL up to MAX_RUNS times, unless
        something was committed."""
        runs = 1
        is_get = request.method in ("GET", "HEAD")
        safe = self.action not in self.unsafe_reads if is_get else self.action in self.safe_posts
        committed = commits_of_this_thread()
        while True:
            try:
                return self._run(request, action)
            except Exception as error:
                is_aborted = sqlstates.is_repeatable(error) and commits_of_this_thread() == committed
                if (safe and runs == 1 and sqlstates.lost_connection(error)) or (is_aborted and runs < MAX_RUNS):
                    runs += 1
                    request.__dict__[server_hints.REPEATED] = True  # it is counted once against the rate limit
                    close_old_connections()
                    if is_aborted:
                        self.met_deadlock = True
                        loop_requests.pause_before_repetition()
                    continue
                return self._refuse(error)

    def _run(self, request: HttpRequest, action: Callable[..., HttpResponseBase]) -> HttpResponseBase:
        self.http_request = request
        self.request = ApiRequest(request, self)
        if self.public:
            request.__dict__["api_public"] = True
        else:
            self._caller = caller = self._authenticate()
            request.__dict__["caller"] = caller
            self.check_permissions(self.request)
        if server_hints.SHARE in request.__dict__:
            server_hints.enter_share(request, self._share_owner())
        query_string = request.META.get("QUERY_STRING", "")
        is_ours = query_string and not self.third_party_queries
        self.query = read_parameters(query_string, self.parameters_of(self.action)) if is_ours else {}
        return action(self.request, *self.args, **self.kwargs)

    def _share_owner(self) -> str:
        caller = self._caller
        if caller is None:
            return site_of(self.http_request)
        if caller.environment is None:
            return caller.account_id or caller.id
        return caller.environment.project_id

    def check_permissions(self, request: Request) -> None:
        """DRF's loop over `permission_classes` would cost a row's request more than the check."""
        for scope in self.scopes_of(self.action):
            self._caller.need(scope)  # type: ignore[union-attr]  # set before

    @classmethod
    def scopes_of(cls, action: str) -> tuple[str, ...]:
        required = cls.required_scopes[action]
        return (required,) if isinstance(required, str) else required or ()

    def _authenticate(self) -> Caller:
        for authentication in self.authentication_classes:
            found = authentication().authenticate(self.request)
            if found is not None:
                return self.request.set_caller(*found)
        raise Unauthorized

    @classmethod
    def parameters_of(cls, action: str) -> frozenset[str] | None:
        return cls.query_parameters.get(action, LIST_PARAMETERS if action == "list" else None)

    def _refuse(self, error: Exception) -> HttpResponseBase:
        api_error = exception_handler.to_api_error(error)
        exception_handler.report(error, api_error)
        other = self.client_errors_as
        if other is not None and is_replaced(api_error) and not isinstance(api_error, other):
            api_error = other(api_error.text, fields=api_error.fields)
        return exception_handler.respond(api_error)
