from django.urls import include, path

from accounts.api import views
from accounts.api.user_views import UserViewSet

urlpatterns = [
    path("", include("accounts.oauth.api.urls")),
    path("", include("accounts.registration.urls")),
    path(".well-known/jwks.json", views.PublicKeysViewSet.as_view({"get": "retrieve"})),
    path("v1/auth/token", views.TokenViewSet.as_view({"post": "create"})),
    path("v1/auth/revoke", views.SessionViewSet.as_view({"post": "revoke"})),
    path("v1/auth/sessions", views.SessionViewSet.as_view({"get": "list"})),
    path("v1/auth/sessions/<str:session_id>", views.SessionViewSet.as_view({"delete": "destroy"})),
    path("v1/keys", views.KeyViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/keys/<str:key_id>", views.KeyViewSet.as_view({"delete": "destroy"})),
    path("v1/users", UserViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/users/<str:user_id>",
        UserViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/users/<str:user_id>/sessions", views.UserSessionViewSet.as_view({"get": "list", "delete": "destroy_all"})),
    path("v1/users/<str:user_id>/sessions/<str:session_id>", views.UserSessionViewSet.as_view({"delete": "destroy"})),
]
