"""The gateway as the pipeline sees it: a connection, and the calls that the pipeline needs."""

from pipeline.gateway.access import Access
from pipeline.gateway.calls import (
    archived_up_to,
    consumers,
    groups,
    move_group,
    of_one_call,
    page,
    pending,
    plan,
    plan_of_each,
    publish,
    stream,
    streams,
    trim,
)
from pipeline.gateway.client import Gateway
from pipeline.gateway.shapes import ColumnsPage, Plan, PlanQuery, Published, StreamPlan

__all__ = [
    "Access",
    "ColumnsPage",
    "Gateway",
    "Plan",
    "PlanQuery",
    "Published",
    "StreamPlan",
    "archived_up_to",
    "consumers",
    "groups",
    "move_group",
    "of_one_call",
    "page",
    "pending",
    "plan",
    "plan_of_each",
    "publish",
    "stream",
    "streams",
    "trim",
]
