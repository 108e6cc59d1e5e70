"""The page of the link that invites into a project (others: `accounts.registration.pages`)."""

from typing import Any

from django import forms

from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.registration.pages import AcceptForm, LinkPage
from projects import services
from projects.directory import invitations
from projects.models import Project


class JoinProject(LinkPage):
    kind = invitations.KIND
    title = "Join a project"
    lead = 'Become {role} of the project "{project}"{by}? You have an account at {app} with this email: {email}.'
    lead_to_new = 'Become {role} of the project "{project}"{by}? Choose a password to create your account at {app}.'
    button = "Join"
    done_title = "You are a member"
    done = 'You are a member of the project "{project}". Sign in to {app} with {email}.'

    def find(self, token: str) -> AccountEmail:
        return invitations.find(token)

    def get_form_class(self) -> type[forms.Form]:
        return AcceptForm if invitations.account_of(self.link) is None else forms.Form

    def lead_for(self, link: AccountEmail) -> str:
        return self.lead_to_new if invitations.account_of(link) is None else self.lead

    def placeholders(self, link: AccountEmail) -> dict[str, str]:
        project = Project.objects.filter(pk=link.project_id).first()
        inviter = User.objects.in_pool(None).filter(pk=link.details["invited_by"]).first()
        return {
            "role": link.details["member_role"],
            "project": project.name if project else "",
            "by": f", invited by {inviter.email}" if inviter else "",
        }

    def act(self, values: dict[str, Any]) -> object:
        return services.accept_invitation(self.token, password=values.get("password"), name=values.get("name", ""))
