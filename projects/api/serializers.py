"""Request and response bodies of `projects`. Contract sections 2 and 4.1-4.4."""

from datetime import datetime, timedelta
from typing import Any, Final

from django.core.validators import RegexValidator
from django.utils import timezone
from rest_framework.exceptions import ValidationError
from rest_framework.serializers import DictField

from accounts.api.serializers import MAX_USER_NAME_LENGTH, ChosenPasswordField, EmailField
from accounts.registration.serializers import TokenField
from platform_site.http import fields
from platform_site.http.fields import Serializer
from projects.directory import origins
from projects.models import Environment, Member, Plan, Region

NAME_LENGTH = 64
MAX_EXPIRY: Final = timedelta(days=365)
BRANCH_NAME: Final = r"\A(?!env_[0-9a-z]{26}\Z)[a-z0-9](?:[a-z0-9._/-]*[a-z0-9])?\Z"
"""As Git's branches, in lower case; never like an id."""
BRANCH_NAME_RULE: Final = (
    "Must begin and end with a lower-case letter or digit, with letters, digits and . _ / - in between."
)


def _name_field(**options: Any) -> fields.NameField:
    """1-64 characters (code points), not blank."""
    return fields.NameField(
        min_length=1,
        max_length=NAME_LENGTH,
        trim_whitespace=False,
        validators=[RegexValidator(r"\S", "May not be blank.", "blank")],
        **options,
    )


class NewProject(Serializer):
    name = _name_field()
    region = fields.ChoiceField(choices=Region.values, default=Region.US_EAST_1.value)
    plan = fields.ChoiceField(choices=Plan.values, default=Plan.FREE.value)


class ProjectChanges(Serializer):
    name = _name_field(required=False)
    plan = fields.ChoiceField(choices=Plan.values, required=False)


def _check_expiry(value: datetime) -> None:
    now = timezone.now()
    if not now < value <= now + MAX_EXPIRY:
        raise ValidationError("Must be within the next 365 days.", "out_of_range")


class NewBranch(Serializer):
    name = fields.CharField(
        max_length=48, trim_whitespace=False, validators=[RegexValidator(BRANCH_NAME, BRANCH_NAME_RULE, "malformed")]
    )
    data = fields.ChoiceField(choices=["none", "full"], default="none")  # type: ignore[assignment]
    expires_at = fields.DateTimeField(
        required=False, allow_null=True, validators=[_check_expiry], help_text="When the branch is deleted."
    )
    from_ = fields.CharField(max_length=48, default="production", help_text="Name or id of an environment.")


class BranchReset(Serializer):
    data = fields.ChoiceField(choices=["none", "full"], default="none")  # type: ignore[assignment]


class EnvironmentChanges(Serializer):
    allowed_origins = fields.ListField(
        child=fields.CharField(max_length=origins.MAX_LENGTH), max_length=origins.MAX_ORIGINS, required=False
    )
    expires_at = fields.DateTimeField(
        required=False, allow_null=True, validators=[_check_expiry], help_text="Of a preview branch; null: never."
    )


class NewMember(Serializer):
    email = EmailField()
    role = fields.ChoiceField(choices=Member.Role.values)


class AcceptedInvitation(Serializer):
    token = TokenField()
    password = ChosenPasswordField(required=False, help_text="Only for an email without an account, which is created.")
    name = fields.NameField(required=False, allow_blank=True, max_length=MAX_USER_NAME_LENGTH)


class MemberChanges(Serializer):
    role = fields.ChoiceField(choices=Member.Role.values, required=False)


class EnvironmentName(Serializer):
    id = fields.CharField()
    name = fields.CharField()


class _ProjectName(EnvironmentName):
    region = fields.ChoiceField(choices=Region.values)


class CreatedProject(_ProjectName):
    environments = EnvironmentName(many=True, source="listed_environments")


class ProjectDetail(CreatedProject):
    created_at = fields.DateTimeField()
    suspended_at = fields.DateTimeField(allow_null=True, help_text="Since when operators have suspended the project.")
    suspension_reason = fields.CharField(allow_null=True, help_text="The reason that they gave.")


class ListedProject(_ProjectName):
    created_at = fields.DateTimeField()


class ListedEnvironment(EnvironmentName):
    schema_version = fields.IntegerField()  # of `environments.with_schema_versions`
    status = fields.ChoiceField(choices=[status for status in Environment.Status.values if status != "deleting"])


class EnvironmentDetail(ListedEnvironment):
    status_reason = fields.CharField(allow_null=True)
    parent_id = fields.CharField(allow_null=True)
    allowed_origins = fields.ListField(child=fields.CharField())
    expires_at = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()


class MemberDetail(Serializer):
    user_id = fields.CharField()
    email = fields.CharField(source="user.email")
    name = fields.CharField(source="user.name", allow_blank=True)
    role = fields.ChoiceField(choices=Member.Role.values)
    created_at = fields.DateTimeField()


class MemberInvitation(Serializer):
    id = fields.CharField()
    email = fields.CharField(source="recipient")
    role = fields.ChoiceField(choices=Member.Role.values, source="details.member_role")
    invited_by = fields.CharField(source="details.invited_by", allow_null=True, help_text="The owner who sent it.")
    status = fields.ChoiceField(choices=["waiting", "sent", "refused"], help_text="Status of the email.")
    created_at = fields.DateTimeField()
    expires_at = fields.DateTimeField()


class JoinedProject(MemberDetail):
    project_id = fields.CharField()


class Limit(Serializer):
    limit = fields.IntegerField()
    used = fields.IntegerField(required=False)


class Limits(Serializer):
    project_id = fields.CharField(source="environment.project_id", allow_null=True)
    environment_id = fields.CharField(source="environment.environment_id", allow_null=True)
    limits = DictField(child=Limit())
