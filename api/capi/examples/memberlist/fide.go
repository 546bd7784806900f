// SPDX-License-Identifier: Apache-2.0

package main

/*
#include <stdlib.h>
#include <fide.h>
*/
import "C"

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"log"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/hashicorp/memberlist"
)

// checked stands at two of memberlist's extension points. As its Transport it sees what comes from whom, also when it comes too late for memberlist. As its
// EventDelegate it holds "has left" back until the silence says something: nothing waits on this host, nothing was lost here, and after a last look there
// is still nothing of that member. What was held back and comes back was never told. And a crash that is certain is told at once.
type checked struct {
	memberlist.NodeAwareTransport
	events  memberlist.EventDelegate
	list    *memberlist.Memberlist
	f       *C.struct_fide
	process string     // what members are watched as by their hosts' agents
	silence C.uint64_t // how long memberlist itself suspects somebody
	packets chan *memberlist.Packet
	marker  []byte // nobody else knows it

	mu    sync.Mutex
	asked uint64                // markers sent
	read  uint64                // the newest of them that came
	heard map[string]C.uint64_t // by address: when a packet of it was last read
	held  map[string]bool       // by name: silent, and nobody was told yet
	gone  map[string]bool       // by name: told
}

func checkedBy(config *memberlist.Config, process string) *checked {
	if os.Getenv("FIDE") == "off" {
		return nil
	}
	c := &checked{events: config.Events, process: process,
		silence: C.uint64_t(config.ProbeInterval) * C.uint64_t(config.SuspicionMult), packets: make(chan *memberlist.Packet), marker: make([]byte, 16),
		heard: map[string]C.uint64_t{}, held: map[string]bool{}, gone: map[string]bool{}}
	transport, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{config.BindAddr},
		BindPort: config.BindPort, Logger: log.New(config.LogOutput, "", 0)})
	if err != nil {
		log.Fatal(err)
	}
	if C.fide_open(nil, &c.f) != C.FIDE_OK {
		log.Fatal(C.GoString(C.fide_last_error_text()))
	}
	rand.Read(c.marker)
	c.NodeAwareTransport = transport
	config.Transport, config.Events = c, c
	go c.pass()
	return c
}

func (c *checked) begin(list *memberlist.Memberlist) {
	if c != nil {
		c.list = list
		go c.crashes()
	}
}

// pass hands packets on, and notes whose they are.
func (c *checked) pass() {
	for p := range c.NodeAwareTransport.PacketCh() {
		host, _, _ := net.SplitHostPort(p.From.String())
		number, mark := bytes.CutPrefix(p.Buf, c.marker)
		c.mu.Lock()
		if mark && len(number) == 8 {
			c.read = max(c.read, binary.NativeEndian.Uint64(number))
		} else {
			c.heard[host] = C.fide_now_ns()
		}
		c.mu.Unlock()
		if !mark {
			c.packets <- p
		}
	}
}

func (c *checked) PacketCh() <-chan *memberlist.Packet { return c.packets }

// look returns when all that was in memberlist's socket has been read: its queue is in order, and the marker is behind it.
func (c *checked) look() bool {
	c.mu.Lock()
	c.asked++
	number := c.asked
	c.mu.Unlock()
	if _, err := c.WriteTo(binary.NativeEndian.AppendUint64(bytes.Clone(c.marker), number), c.list.LocalNode().Address()); err != nil {
		return false
	}
	for range 1000 {
		c.mu.Lock()
		read := c.read
		c.mu.Unlock()
		if read >= number {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// decide asks a silent member until it has an answer, or its silence says something.
func (c *checked) decide(n *memberlist.Node) {
	address, host := &net.UDPAddr{IP: n.Addr, Port: int(n.Port)}, C.CString(n.Addr.String())
	defer C.free(unsafe.Pointer(host))
	var since C.uint64_t
	for {
		c.mu.Lock()
		held := c.held[n.Name]
		since = max(since, c.heard[n.Addr.String()])
		c.mu.Unlock()
		if !held {
			return // it is back
		}
		c.list.Ping(n.Name, address)
		now := C.fide_now_ns()
		outcome := C.fide_check(c.f, host, since, now, 1e9, nil)
		if outcome == C.FIDE_CHECK_VOID {
			since = C.fide_now_ns()
		}
		drained := outcome == C.FIDE_CHECK_DRAINED && c.look()
		c.mu.Lock()
		silent := c.heard[n.Addr.String()] <= since
		c.mu.Unlock()
		if drained && silent && now > since+c.silence {
			c.tell(n)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *checked) tell(n *memberlist.Node) {
	c.mu.Lock()
	told := c.gone[n.Name]
	c.gone[n.Name] = true
	delete(c.held, n.Name)
	c.mu.Unlock()
	if !told {
		c.events.NotifyLeave(n)
	}
}

func (c *checked) NotifyLeave(n *memberlist.Node) {
	if n.State == memberlist.StateLeft {
		c.tell(n) // it said so
		return
	}
	c.mu.Lock()
	told := c.gone[n.Name]
	c.held[n.Name] = !told
	c.mu.Unlock()
	if !told {
		go c.decide(n)
	}
}

func (c *checked) NotifyJoin(n *memberlist.Node) {
	c.mu.Lock()
	held := c.held[n.Name]
	delete(c.held, n.Name)
	delete(c.gone, n.Name)
	c.heard[n.Addr.String()] = C.fide_now_ns()
	c.mu.Unlock()
	target := C.CString(c.process + "@" + n.Name)
	defer C.free(unsafe.Pointer(target))
	if C.fide_monitor(c.f, target, nil, nil) != C.FIDE_OK {
		log.Print(C.GoString(C.fide_last_error_text()))
	}
	if !held {
		c.events.NotifyJoin(n)
	}
}

func (c *checked) NotifyUpdate(n *memberlist.Node) { c.events.NotifyUpdate(n) }

// back tells that a member has come again, of whose end memberlist has not heard.
func (c *checked) back(n *memberlist.Node) {
	c.mu.Lock()
	told := c.gone[n.Name]
	delete(c.gone, n.Name)
	c.mu.Unlock()
	if told {
		c.events.NotifyJoin(n)
	}
}

// crashes tells at once what a kernel saw.
func (c *checked) crashes() {
	runtime.LockOSThread() // an event's name is its thread's
	var e C.struct_fide_event
	C.fide_event_init(&e)
	for C.fide_next_event(c.f, &e, -1) == 1 {
		ended := e.kind == C.FIDE_EVENT_FAILURE && e.grade == C.FIDE_GRADE_CERTAIN
		if !ended && e.kind != C.FIDE_EVENT_MONITORED || e.name == nil {
			continue
		}
		_, host, _ := strings.Cut(C.GoString(e.name), "@")
		for _, n := range c.list.Members() {
			if n.Name == host && ended {
				c.tell(n)
			} else if n.Name == host {
				c.back(n)
			}
		}
	}
}
