"""redis-py's own Lock, with its default way to wait: ask again every 0.1 s."""

import sys

import redis
from redis.exceptions import LockNotOwnedError

from contender import serve

client = redis.Redis.from_url(sys.argv[1], max_connections=1000)  # the default of 100 is too few for 200 waiters
client.ping()
serve(lambda name: client.lock(name, timeout=10), lost=LockNotOwnedError)
