"""kazoo's Lock recipe, one client for all threads, as its documentation shows. Waits by a watch on the one before."""

import logging
import sys

from kazoo.client import KazooClient

from contender import serve

logging.disable(logging.CRITICAL)  # the server is thrown away while threads still wait
client = KazooClient(hosts=sys.argv[1].removeprefix("zk://"), timeout=10)
client.start()
serve(lambda name: client.Lock("/" + name))
