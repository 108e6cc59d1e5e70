"""Pages of the console that are no model's: in the roof's addresses before the admin's own."""

from django.urls import path

from accounts.staff import views

app_name = "staff"
urlpatterns = [
    path("login/code/", views.code, name="code"),
    path("login/forgotten/", views.forgotten, name="forgotten"),
    path("security/", views.security, name="security"),
]
