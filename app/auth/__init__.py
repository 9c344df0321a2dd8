"""Who may do what: principals, grants, tokens, tickets, rate limits.

Knows: credentials and what they allow. Must never know: entries, routes, which operation needs which action.
"""

from app.auth.grants import Access, Action, Grant, Resource, Rule
from app.auth.policy import AccessPolicy, OpenPolicy, TokenPolicy, forbidden
from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal

__all__ = [
    "ANONYMOUS",
    "UNAUTHENTICATED",
    "Access",
    "AccessPolicy",
    "Action",
    "Grant",
    "OpenPolicy",
    "Principal",
    "Resource",
    "Rule",
    "TokenPolicy",
    "require",
]


def require(principal: Principal, action: Action, resource: Resource) -> None:
    """Raise `forbidden` unless the principal may do this. The refusal does not reveal whether the stream
    exists.
    """
    if not principal.may(action, resource):
        raise forbidden(f"the credentials do not allow to {action} here")
