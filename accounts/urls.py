from django.urls import include, path

from accounts.api.user_sessions import UserSessionViewSet
from accounts.api.views import KeyViewSet, PublicKeysViewSet, SessionViewSet, TokenViewSet, UserViewSet
from accounts.registration.views import MeViewSet

urlpatterns = [
    path("", include("accounts.oauth.api.urls")),
    path("", include("accounts.registration.urls")),
    path(".well-known/jwks.json", PublicKeysViewSet.as_view({"get": "retrieve"})),
    path("v1/auth/token", TokenViewSet.as_view({"post": "create"})),
    path("v1/auth/revoke", SessionViewSet.as_view({"post": "revoke"})),
    path("v1/auth/sessions", SessionViewSet.as_view({"get": "list"})),
    path("v1/auth/sessions/<str:session_id>", SessionViewSet.as_view({"delete": "destroy"})),
    path("v1/auth/me", MeViewSet.as_view({"get": "retrieve", "patch": "partial_update"})),
    path("v1/keys", KeyViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/keys/<str:key_id>", KeyViewSet.as_view({"delete": "destroy"})),
    path("v1/users", UserViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/users/<str:user_id>",
        UserViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/users/<str:user_id>/sessions", UserSessionViewSet.as_view({"get": "list", "delete": "destroy_all"})),
    path("v1/users/<str:user_id>/sessions/<str:session_id>", UserSessionViewSet.as_view({"delete": "destroy"})),
]
