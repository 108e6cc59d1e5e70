from django.urls import path

from accounts.api import views
from accounts.api.user_views import UserViewSet
from accounts.oauth.api.provider_views import IdentityProviderViewSet, IdentityViewSet, RedirectUriViewSet
from accounts.oauth.api.sign_in_views import ProviderSignInViewSet, SignInCallbackViewSet, SignInProviderViewSet
from accounts.registration import pages
from accounts.registration.views import InvitationViewSet, LinkViewSet, MeViewSet, OwnAccountViewSet, SettingsViewSet

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
    path("v1/auth/signup", LinkViewSet.as_view({"post": "sign_up"})),
    path("v1/auth/signup/confirm", LinkViewSet.as_view({"post": "confirm_sign_up"})),
    path("v1/auth/invitation/accept", LinkViewSet.as_view({"post": "accept_invitation"})),
    path("v1/auth/password-reset", LinkViewSet.as_view({"post": "request_password_reset"})),
    path("v1/auth/password-reset/confirm", LinkViewSet.as_view({"post": "reset_password"})),
    path("v1/auth/email-verification", OwnAccountViewSet.as_view({"post": "request_verification"})),
    path("v1/auth/email-verification/confirm", LinkViewSet.as_view({"post": "verify_email"})),
    path("v1/auth/email-change", OwnAccountViewSet.as_view({"post": "request_email_change"})),
    path("v1/auth/email-change/confirm", LinkViewSet.as_view({"post": "change_email"})),
    path("v1/auth/delete-account", OwnAccountViewSet.as_view({"post": "remove"})),
    path("v1/auth/me", MeViewSet.as_view({"get": "retrieve", "patch": "partial_update"})),
    path("v1/auth/settings", SettingsViewSet.as_view({"get": "retrieve", "patch": "partial_update"})),
    path("v1/invitations", InvitationViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/invitations/<str:invitation_id>", InvitationViewSet.as_view({"delete": "destroy"})),
    path("auth/confirm-sign-up", pages.ConfirmSignUp.as_view(), name="page_sign_up"),
    path("auth/accept-invitation", pages.AcceptInvitation.as_view(), name="page_invitation"),
    path("auth/verify-email", pages.VerifyEmail.as_view(), name="page_verify_email"),
    path("auth/reset-password", pages.ResetPassword.as_view(), name="page_reset_password"),
    path("auth/confirm-email-change", pages.ConfirmEmailChange.as_view(), name="page_change_email"),
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
