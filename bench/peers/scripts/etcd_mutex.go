// etcd's own Go client: concurrency.Mutex, a session for each task as its documentation asks. A contender's process: reads
// orders, carries them out, answers; src/orders.rs has the words. Tasks are goroutines.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for the kernel's clock, which all processes share

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

const ttlSeconds = 10

//go:linkname nanotime runtime.nanotime
func nanotime() int64

type order struct {
	Order  string
	Name   string
	Tasks  int
	HoldMs int64 `json:"hold_ms"`
	WarmMs int64 `json:"warm_ms"`
	Ms     int64
}

type answer map[string]interface{}

var (
	client *clientv3.Client
	ctx    = context.Background()
	out    sync.Mutex
)

func main() {
	endpoints := strings.Split(strings.TrimPrefix(os.Args[1], "etcd://"), ",")
	var err error
	client, err = clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	if err != nil {
		say(answer{"answer": "failed", "why": "connecting: " + err.Error()})
		return
	}
	say(answer{"answer": "ready"})
	var prepared *concurrency.Mutex
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked order
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			err = obey(asked, &prepared)
		}
		if err != nil {
			say(answer{"answer": "failed", "why": err.Error()})
		}
	}
	os.Exit(0) // goroutines may still wait for locks, and the server is thrown away: nothing to tidy
}

func obey(asked order, prepared **concurrency.Mutex) (err error) {
	switch asked.Order {
	case "solo":
		return solo(asked)
	case "many":
		return many(asked)
	case "contend":
		return contend(asked)
	case "prepare":
		if *prepared, err = mutex(asked.Name); err == nil {
			say(answer{"answer": "prepared"})
		}
	case "lock":
		began := nanotime()
		if err = (*prepared).Lock(ctx); err == nil {
			say(answer{"answer": "held", "asked_ns": began, "at_ns": nanotime()})
		}
	case "unlock":
		called := nanotime()
		if err = (*prepared).Unlock(ctx); err == nil {
			say(answer{"answer": "released", "at_ns": called})
		}
	default:
		err = fmt.Errorf("the order %q is not known", asked.Order)
	}
	return err
}

// One task's handle: tasks of one session would share its locks.
func mutex(name string) (*concurrency.Mutex, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttlSeconds))
	if err != nil {
		return nil, err
	}
	return concurrency.NewMutex(session, name), nil
}

func solo(asked order) error {
	lock, err := mutex(asked.Name)
	if err != nil {
		return err
	}
	countingFrom := nanotime() + asked.WarmMs*1e6
	until := countingFrom + asked.Ms*1e6
	var pairs []int64
	for {
		began := nanotime()
		if began >= until {
			break
		}
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		if err := lock.Unlock(ctx); err != nil {
			return err
		}
		if began >= countingFrom {
			pairs = append(pairs, nanotime()-began)
		}
	}
	say(answer{"answer": "solo", "p50_ns": percentile(pairs, 0.5), "p99_ns": percentile(pairs, 0.99), "pairs": len(pairs)})
	return nil
}

func many(asked order) error {
	var pairs uint64
	trouble := make(chan error, asked.Tasks)
	for me := 0; me < asked.Tasks; me++ {
		lock, err := mutex(fmt.Sprintf("%s/%d", asked.Name, me))
		if err != nil {
			return err
		}
		go func() {
			for {
				if err := lock.Lock(ctx); err != nil {
					trouble <- err
					return
				}
				if err := lock.Unlock(ctx); err != nil {
					trouble <- err
					return
				}
				atomic.AddUint64(&pairs, 1)
			}
		}()
	}
	time.Sleep(time.Duration(asked.WarmMs) * time.Millisecond)
	began, before := nanotime(), atomic.LoadUint64(&pairs)
	time.Sleep(time.Duration(asked.Ms) * time.Millisecond)
	seconds, after := float64(nanotime()-began)/1e9, atomic.LoadUint64(&pairs)
	select {
	case err := <-trouble:
		return err
	default:
		say(answer{"answer": "many", "pairs": after - before, "seconds": seconds})
		return nil
	}
}

func contend(asked order) error {
	room := &room{last: -1, freeSince: -1, perTask: make([]uint64, asked.Tasks)}
	trouble := make(chan error, asked.Tasks)
	locks := make([]*concurrency.Mutex, asked.Tasks)
	for me := range locks {
		var err error
		if locks[me], err = mutex(asked.Name); err != nil {
			return err
		}
	}
	for me, lock := range locks {
		go func(me int, lock *concurrency.Mutex) {
			for {
				if err := lock.Lock(ctx); err != nil {
					trouble <- err
					return
				}
				room.enter(me)
				if asked.HoldMs > 0 {
					time.Sleep(time.Duration(asked.HoldMs) * time.Millisecond)
				}
				room.leave()
				if err := lock.Unlock(ctx); err != nil {
					trouble <- err
					return
				}
			}
		}(me, lock)
	}
	time.Sleep(time.Duration(asked.WarmMs) * time.Millisecond)
	began := nanotime()
	room.startCounting()
	say(answer{"answer": "counting"})
	time.Sleep(time.Duration(asked.Ms) * time.Millisecond)
	seen := room.sumUp(float64(nanotime()-began) / 1e9)
	select {
	case err := <-trouble:
		return err
	default:
		say(seen)
		return nil
	}
}

// As in src/room.rs: counts who comes in, and notices when two are inside.
type room struct {
	sync.Mutex
	counting              bool
	inside, last          int
	freeSince             int64
	gaps                  []int64
	perTask               []uint64
	handovers, violations uint64
}

func (r *room) enter(me int) {
	r.Lock()
	defer r.Unlock()
	if r.inside > 0 {
		r.violations++
	}
	r.inside++
	changed := r.last != me
	r.last = me
	gap := int64(-1)
	if changed && r.freeSince >= 0 {
		gap, r.freeSince = nanotime()-r.freeSince, -1
	}
	if !r.counting {
		return
	}
	r.perTask[me]++
	if changed {
		r.handovers++
	}
	if gap >= 0 {
		r.gaps = append(r.gaps, gap)
	}
}

func (r *room) leave() {
	r.Lock()
	defer r.Unlock()
	r.inside--
	if r.freeSince < 0 {
		r.freeSince = nanotime()
	}
}

func (r *room) startCounting() {
	r.Lock()
	defer r.Unlock()
	r.counting = true
}

func (r *room) sumUp(seconds float64) answer {
	r.Lock()
	defer r.Unlock()
	r.counting = false
	var acquisitions uint64
	for _, count := range r.perTask {
		acquisitions += count
	}
	return answer{
		"answer": "contend", "seconds": seconds, "acquisitions": acquisitions, "handovers": r.handovers,
		"per_task": append([]uint64{}, r.perTask...), "gap_p50_ns": percentile(r.gaps, 0.5), "gap_p99_ns": percentile(r.gaps, 0.99),
		"violations": r.violations, "gave_up": 0, "lost": 0,
	}
}

// Nothing of nothing.
func percentile(values []int64, share float64) interface{} {
	if len(values) == 0 {
		return nil
	}
	ordered := append([]int64{}, values...)
	sort.Slice(ordered, func(a, b int) bool { return ordered[a] < ordered[b] })
	place := int(math.Ceil(float64(len(ordered))*share)) - 1
	if place < 0 {
		place = 0
	}
	return ordered[place]
}

func say(what answer) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}
