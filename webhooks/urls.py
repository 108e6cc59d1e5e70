from django.urls import path

from webhooks.api.views import DeliveryViewSet, WebhookViewSet

urlpatterns = [
    path("v1/webhooks", WebhookViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/webhooks/<str:webhook_id>",
        WebhookViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/webhooks/<str:webhook_id>/test", WebhookViewSet.as_view({"post": "test"})),
    path("v1/webhooks/<str:webhook_id>/rotate-secret", WebhookViewSet.as_view({"post": "rotate_secret"})),
    path("v1/webhooks/<str:webhook_id>/recover", WebhookViewSet.as_view({"post": "recover"})),
    path("v1/webhooks/<str:webhook_id>/deliveries", DeliveryViewSet.as_view({"get": "list"})),
    path(
        "v1/webhooks/<str:webhook_id>/deliveries/<str:delivery_id>/redeliver",
        DeliveryViewSet.as_view({"post": "redeliver"}),
    ),
]
