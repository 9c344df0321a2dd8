"""Redis or Valkey as the engine: the commands of `engine.commands`, run by a server.

Knows: connections, which node has which stream, Redis's words and replies.
Must never know: the web, settings, logging.
"""

from engine.cluster.executor import ClusterEngine
from engine.cluster.figures import BackendFigures
from engine.cluster.gateways import Gateways
from engine.cluster.health import BackendHealth, Trouble
from engine.cluster.replication import BackendDurability, parse_durability
from engine.cluster.topology import ClusterTopology, SentinelTopology, Standalone, Topology
from engine.cluster.wire import Address, ServerAccess

__all__ = [
    "Address",
    "BackendDurability",
    "BackendFigures",
    "BackendHealth",
    "ClusterEngine",
    "ClusterTopology",
    "Gateways",
    "SentinelTopology",
    "ServerAccess",
    "Standalone",
    "Topology",
    "Trouble",
    "parse_durability",
]
