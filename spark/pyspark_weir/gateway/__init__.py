"""The gateway as the pipeline sees it: a connection, and the calls that the pipeline needs."""

from pyspark_weir.gateway.access import Access
from pyspark_weir.gateway.calls import (
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
from pyspark_weir.gateway.client import Gateway
from pyspark_weir.gateway.shapes import ColumnsPage, Plan, PlanQuery, Published, StreamPlan

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
