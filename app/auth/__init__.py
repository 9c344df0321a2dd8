"""Who may do what: principals, grants, tokens, tickets, rate limits.

Knows: credentials and what they allow. Must never know: entries, routes, which operation needs which action.
"""

from app.auth.grants import ANY_CONSUMER, Access, Action, Grant, Resource, Rule
from app.auth.policy import AccessPolicy, OpenPolicy, TokenPolicy
from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal

__all__ = [
    "ANONYMOUS",
    "ANY_CONSUMER",
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
]
