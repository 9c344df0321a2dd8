"""What the tests of documents share.

Knows: how to start a gateway. Must never know: what a document says.
"""

from tests.server import server_of

# A gateway of one's own.
server = server_of("function")
