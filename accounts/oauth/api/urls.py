from django.urls import path

from accounts.oauth.api.provider_views import IdentityProviderViewSet, IdentityViewSet, RedirectUriViewSet
from accounts.oauth.api.sign_in_views import ProviderSignInViewSet, SignInCallbackViewSet, SignInProviderViewSet

urlpatterns = [
    path("v1/auth/authorize", ProviderSignInViewSet.as_view({"get": "begin"})),
    path(
        "v1/auth/callback/<str:provider_id>", SignInCallbackViewSet.as_view({"get": "receive", "post": "receive_form"})
    ),
    path("v1/auth/providers", SignInProviderViewSet.as_view({"get": "list"})),
    path("v1/auth/identities", IdentityViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/auth/identities/<str:identity_id>", IdentityViewSet.as_view({"delete": "destroy"})),
    path("v1/identity-providers", IdentityProviderViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/identity-providers/<str:provider_id>",
        IdentityProviderViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/redirect-uris", RedirectUriViewSet.as_view({"get": "retrieve", "put": "replace"})),
]
