"""python-redis-lock: SET NX, then BLPOP on a signal list. Without renewal, which would start a thread for every hold."""

import sys

import redis
import redis_lock

from contender import serve

client = redis.Redis.from_url(sys.argv[1], max_connections=1000)  # the default of 100 is too few for 200 waiters
client.ping()
serve(lambda name: redis_lock.Lock(client, name, expire=10), lost=redis_lock.NotAcquired)
