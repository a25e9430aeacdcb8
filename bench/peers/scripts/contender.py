"""A contender's process in Python: reads orders, carries them out, answers. src/orders.rs has the words.

Tasks are threads, which is how programs that use these synchronous libraries wait for locks.
"""

import json
import math
import os
import sys
import threading
import time


def serve(make_lock, lost=()):
    """make_lock(name) gives one thread's handle, with acquire() → bool and release(). lost: what release raises if it was."""
    say(answer="ready")
    prepared = None
    for line in sys.stdin:
        order = json.loads(line)
        kind = order["order"]
        try:
            if kind == "solo":
                solo(make_lock, order)
            elif kind == "many":
                many(make_lock, order)
            elif kind == "contend":
                contend(make_lock, order, lost)
            elif kind == "prepare":
                prepared = make_lock(order["name"])
                say(answer="prepared")
            elif kind == "lock":
                asked = now()
                while not prepared.acquire():
                    pass
                say(answer="held", asked_ns=asked, at_ns=now())
            elif kind == "unlock":
                called = now()
                prepared.release()
                say(answer="released", at_ns=called)
        except Exception as error:
            say(answer="failed", why=f"{type(error).__name__}: {error}")
    # Threads may still wait for locks, and the server is thrown away: nothing to tidy.
    os._exit(0)


def solo(make_lock, order):
    lock = make_lock(order["name"])
    counting_from = now() + order["warm_ms"] * 1_000_000
    until = counting_from + order["ms"] * 1_000_000
    pairs = []
    while (began := now()) < until:
        lock.acquire()
        lock.release()
        if began >= counting_from:
            pairs.append(now() - began)
    say(answer="solo", p50_ns=percentile(pairs, 0.5), p99_ns=percentile(pairs, 0.99), pairs=len(pairs))


def many(make_lock, order):
    pairs = [0] * order["tasks"]
    trouble = []

    def work(me):
        try:
            lock = make_lock(f"{order['name']}/{me}")
            while True:
                lock.acquire()
                lock.release()
                pairs[me] += 1
        except Exception as error:
            trouble.append(error)

    start(work, order["tasks"])
    time.sleep(order["warm_ms"] / 1000)
    began, before = now(), sum(pairs)
    time.sleep(order["ms"] / 1000)
    seconds, after = (now() - began) / 1e9, sum(pairs)
    if trouble:
        raise trouble[0]
    say(answer="many", pairs=after - before, seconds=seconds)


def contend(make_lock, order, lost):
    room = Room(order["tasks"])
    trouble = []
    hold = order["hold_ms"] / 1000

    def work(me):
        try:
            lock = make_lock(order["name"])
            while True:
                if not lock.acquire():
                    room.gave_up += 1
                    continue
                room.enter(me)
                if hold:
                    time.sleep(hold)
                room.leave()
                try:
                    lock.release()
                except lost:
                    room.lost += 1
        except Exception as error:
            trouble.append(error)

    start(work, order["tasks"])
    time.sleep(order["warm_ms"] / 1000)
    began = now()
    room.counting = True
    say(answer="counting")
    time.sleep(order["ms"] / 1000)
    seen = room.sum_up((now() - began) / 1e9)
    if trouble:
        raise trouble[0]
    say(answer="contend", **seen)


class Room:
    """As in src/room.rs: counts who comes in, and notices when two are inside."""

    def __init__(self, tasks):
        self.mutex = threading.Lock()
        self.counting = False
        self.inside = self.handovers = self.violations = self.gave_up = self.lost = 0
        self.last = self.free_since = None
        self.per_task = [0] * tasks
        self.gaps = []

    def enter(self, me):
        with self.mutex:
            self.violations += self.inside > 0
            self.inside += 1
            changed, self.last = self.last != me, me
            gap = None
            if changed and self.free_since is not None:
                gap, self.free_since = now() - self.free_since, None
            if self.counting:
                self.per_task[me] += 1
                self.handovers += changed
                if gap is not None:
                    self.gaps.append(gap)

    def leave(self):
        with self.mutex:
            self.inside -= 1
            if self.free_since is None:
                self.free_since = now()

    def sum_up(self, seconds):
        with self.mutex:
            self.counting = False
            return {
                "seconds": seconds,
                "acquisitions": sum(self.per_task),
                "handovers": self.handovers,
                "per_task": self.per_task,
                "gap_p50_ns": percentile(self.gaps, 0.5),
                "gap_p99_ns": percentile(self.gaps, 0.99),
                "violations": self.violations,
                "gave_up": self.gave_up,
                "lost": self.lost,
            }


def start(work, tasks):
    for me in range(tasks):
        threading.Thread(target=work, args=(me,), daemon=True).start()


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * share)) - 1] if ordered else None


def now():
    return time.monotonic_ns()


def say(**answer):
    print(json.dumps(answer), flush=True)
