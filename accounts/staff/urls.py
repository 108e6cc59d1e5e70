from django.urls import path

from accounts.staff import views

app_name = "staff"
urlpatterns = [
    path("login/code/", views.code, name="code"),
    path("login/forgotten/", views.forgotten_password, name="forgotten"),
    path("security/", views.security, name="security"),
]
