package fide

/*
#cgo pkg-config: fide
#include <fide.h>
#include <stdlib.h>

extern void fideGoResumed(char *target, int error, struct fide_monitored *now, void *user);

static int fide_go_reconnect(struct fide *f, void *user)
{
	return fide_reconnect(f, (fide_resumed)fideGoResumed, user);
}
static void fide_go_event_init(struct fide_event *e) { fide_event_init(e); }
static void fide_go_monitored_init(struct fide_monitored *m) { fide_monitored_init(m); }
static void fide_go_resources_init(struct fide_resources *r) { fide_resources_init(r); }
static void fide_go_options_init(struct fide_options *o) { fide_options_init(o); }
*/
import "C"

import (
	"context"
	"errors"
	"iter"
	"os"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// PiggybackMax is the most bytes of a piggybacked message; what is granted may be less.
const PiggybackMax = C.FIDE_PIGGYBACK_MAX

// Client is a connection to the agent of this host. Any method may be called from any goroutine.
type Client struct {
	mu      sync.RWMutex // read: the handle is in use; write: it is closed
	f       *C.struct_fide
	watched *os.File // a duplicate of the handle's descriptor, in Go's poller
	waiting sync.Mutex
	closing atomic.Bool
}

// Options is how a connection is opened; zero values are the defaults.
type Options struct {
	Path          string        // the agent's socket; "": $FIDE_SOCKET, else the default
	SocketOnly    bool          // take events through a socket although the kernel could write them into memory
	AnswerTimeout time.Duration // longest wait for each of the agent's answers; 0: 10 s
}

// Resources is what is asked of Monitor.
type Resources struct {
	Pbsize  uint32        // smallest piggyback size wanted from it, bytes
	Timeout time.Duration // largest timeout that is of use; 0 for whatever the contract gives
}

// Monitored is what Monitor was granted.
type Monitored struct {
	Node    uint32        // the node's wire id
	App     uint32        // the process's number; 0 for a host, for "*", and for what is not running now
	Pbsize  uint32        // bytes
	Timeout time.Duration // for the silence of its host
	Alive   bool          // it is known and alive now; otherwise no failure comes until it has come and gone
	State   TargetState
	Cause   Cause // how the last process of that name ended, where State is TargetEnded
	Code    int   // its exit status or signal
}

// Event is what the application is told. Fields that an event has no use for are zero.
type Event struct {
	Kind        EventKind
	Cause       Cause
	Grade       Grade
	Name        string // "name@host" or "@host" where it is known
	Node        uint32
	App         uint32 // the process's number there, 0 for the node itself
	Incarnation uint32
	Code        int    // exit status, signal or path, as the cause says
	Path        uint32 // the path the first copy came by
	Confirms    bool   // it confirms an earlier "doomed"
	Local       bool   // it happened on this host
	Fenced      bool   // its host is silent, and is fenced as a whole: nothing of it is heard any more
	ID          string // the verdict's id, for `fide explain`; "" without one
	EventNS     uint64 // when it happened: CLOCK_MONOTONIC of the host where it happened
	SentNS      uint64 // when the notice left, by the same clock
	ReceivedNS  uint64 // when this host's kernel received it: this host's CLOCK_MONOTONIC, as NowNS
	Number      uint64 // as the kind says
	Data        []byte // a piggybacked message
}

// Resumed is what Reconnect restored.
type Resumed struct {
	Rejoined bool  // this process had joined before
	JoinErr  error // why it could not join again
	Targets  []ResumedTarget
}

// ResumedTarget is what became of one target of Monitor. What ended of it meanwhile is reported as a failure, once.
type ResumedTarget struct {
	Target string
	Now    Monitored
	Err    error
}

// NowNS is this host's CLOCK_MONOTONIC in nanoseconds.
func NowNS() uint64 { return uint64(C.fide_now_ns()) }

// Version is the library's.
func Version() string { return C.GoString(C.fide_version()) }

// Open connects to the agent of this host; path is its socket, "" for $FIDE_SOCKET, else the default.
func Open(path string) (*Client, error) { return OpenWith(Options{Path: path}) }

// OpenWith is Open with everything that can be chosen.
func OpenWith(options Options) (*Client, error) {
	var o C.struct_fide_options
	C.fide_go_options_init(&o)
	if options.Path != "" {
		path := C.CString(options.Path)
		defer C.free(unsafe.Pointer(path))
		o.path = path
	}
	if options.SocketOnly {
		o.flags = C.FIDE_OPEN_SOCKET_ONLY
	}
	o.answer_timeout_ns = C.uint64_t(max(options.AnswerTimeout, 0).Nanoseconds())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var f *C.struct_fide
	if code := C.fide_open_with(&o, &f); code != C.FIDE_OK {
		return nil, failure(code)
	}
	watched, err := watch(int(C.fide_fd(f)))
	if err != nil {
		C.fide_close(f)
		return nil, err
	}
	return &Client{f: f, watched: watched}, nil
}

// watch puts a duplicate of the descriptor into Go's poller.
func watch(fd int) (*os.File, error) {
	own, err := syscall.Dup(fd)
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(own)
	if err := syscall.SetNonblock(own, true); err != nil {
		syscall.Close(own)
		return nil, err
	}
	return os.NewFile(uintptr(own), "fide"), nil
}

// Close ends the connection. A process that has joined is monitored as before. Waits in Next and Events end with os.ErrClosed.
func (c *Client) Close() error {
	c.closing.Store(true)
	c.watched.Close() // wakes who waits
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		return os.ErrClosed
	}
	C.fide_close(c.f)
	c.f = nil
	return nil
}

// with runs a call of the library on a thread of its own, whose last error is the call's.
func (c *Client) with(call func(f *C.struct_fide) C.int) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.f == nil {
		return os.ErrClosed
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code := call(c.f); code < 0 {
		return failure(code)
	}
	return nil
}

// Node is the name of this host as its agent has it.
func (c *Client) Node() (name string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.f == nil {
		return ""
	}
	return C.GoString(C.fide_node(c.f))
}

// Monitor asks for events of a process ("name@host"), of a host and all its processes ("@host"), or of everything ("*").
func (c *Client) Monitor(target string, wanted Resources) (Monitored, error) {
	var w C.struct_fide_resources
	C.fide_go_resources_init(&w)
	w.pbsize = C.uint32_t(wanted.Pbsize)
	w.timeout_ns = C.uint64_t(max(wanted.Timeout, 0).Nanoseconds())
	var granted C.struct_fide_monitored
	C.fide_go_monitored_init(&granted)
	text := C.CString(target)
	defer C.free(unsafe.Pointer(text))
	if err := c.with(func(f *C.struct_fide) C.int { return C.fide_monitor(f, text, &w, &granted) }); err != nil {
		return Monitored{}, err
	}
	return monitored(&granted), nil
}

func monitored(m *C.struct_fide_monitored) Monitored {
	return Monitored{
		Node: uint32(m.node), App: uint32(m.app), Pbsize: uint32(m.pbsize), Timeout: time.Duration(m.timeout_ns),
		Alive: m.alive != 0, State: TargetState(m.state), Cause: Cause(m.cause), Code: int(m.code),
	}
}

// Unmonitor ends Monitor of the same target. Events that are already there still come.
func (c *Client) Unmonitor(target string) error {
	text := C.CString(target)
	defer C.free(unsafe.Pointer(text))
	return c.with(func(f *C.struct_fide) C.int { return C.fide_unmonitor(f, text) })
}

// Join has this process monitored under a name, and lets it piggyback pbsize bytes at a time; it gives the size granted. From now on its end without
// Quit is a crash.
func (c *Client) Join(name string, pbsize uint32) (app, granted uint32, err error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var a, g C.uint32_t
	err = c.with(func(f *C.struct_fide) C.int { return C.fide_join(f, text, C.uint32_t(pbsize), &a, &g) })
	return uint32(a), uint32(g), err
}

// Quit leaves politely: what follows is not a crash.
func (c *Client) Quit() error {
	return c.with(func(f *C.struct_fide) C.int { return C.fide_quit(f) })
}

// Piggyback sends a message to everybody who monitors this process, on this host's next free heartbeat. It never blocks: ErrFull when earlier ones still
// wait, ErrTooLarge above the size granted.
func (c *Client) Piggyback(message []byte) error {
	return c.with(func(f *C.struct_fide) C.int {
		var one byte // an empty slice has no address; the library refuses it by its length
		data := unsafe.Pointer(&one)
		if len(message) > 0 {
			data = unsafe.Pointer(&message[0])
		}
		return C.fide_piggyback(f, data, C.size_t(len(message)))
	})
}

// Pbsize is the piggyback size granted now, bytes; 0 before Join.
func (c *Client) Pbsize() (size int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.f == nil {
		return 0
	}
	return max(int(C.fide_pbsize(c.f)), 0)
}

// Report tells all hosts what this application's own detector found of a process of this host that is watched as name.
func (c *Client) Report(name string, hung bool, reason string) error {
	text, why := C.CString(name), C.CString(reason)
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(why))
	is := C.int(0)
	if hung {
		is = 1
	}
	return c.with(func(f *C.struct_fide) C.int { return C.fide_report(f, text, is, why) })
}

// Maintenance is how long the maintenance of "name@host" or "@host" still lasts; 0 without one. What ends in it was planned.
func (c *Client) Maintenance(target string) (time.Duration, error) {
	text := C.CString(target)
	defer C.free(unsafe.Pointer(text))
	var left C.uint64_t
	err := c.with(func(f *C.struct_fide) C.int { return C.fide_maintenance(f, text, &left) })
	return time.Duration(left), err
}

// take is the next event if there is one now.
func (c *Client) take() (event Event, ok bool, err error) {
	var e C.struct_fide_event
	C.fide_go_event_init(&e)
	err = c.with(func(f *C.struct_fide) C.int {
		code := C.fide_next_event(f, &e, 0)
		if code == 1 { // what it points at is this thread's until it asks again
			event, ok = read(&e), true
		}
		return code
	})
	return event, ok, err
}

func read(e *C.struct_fide_event) Event {
	event := Event{
		Kind: EventKind(e.kind), Cause: Cause(e.cause), Grade: Grade(e.grade), Node: uint32(e.node), App: uint32(e.app),
		Incarnation: uint32(e.incarnation), Code: int(e.code), Path: uint32(e.path), Confirms: e.flags&C.FIDE_FLAG_CONFIRMS != 0,
		Local: e.flags&C.FIDE_FLAG_LOCAL != 0, Fenced: e.flags&C.FIDE_FLAG_FENCED != 0, EventNS: uint64(e.event_ns), SentNS: uint64(e.sent_ns), ReceivedNS: uint64(e.received_ns),
		Number: uint64(e.number),
	}
	if e.name != nil {
		event.Name = C.GoString(e.name)
	}
	if e.data_len > 0 {
		event.Data = C.GoBytes(e.data, C.int(e.data_len))
	}
	if e.id != 0 {
		var text [24]C.char
		if C.fide_id_text(e.id, &text[0], C.size_t(len(text))) == C.FIDE_OK {
			event.ID = C.GoString(&text[0])
		}
	}
	return event
}

// Next waits for the next event until the context ends, which is then the error. ErrDisconnected after EventAgentGone: Reconnect then. Each event goes
// to one caller.
func (c *Client) Next(ctx context.Context) (Event, error) {
	if event, ok, err := c.take(); ok || err != nil {
		return event, err
	}
	c.waiting.Lock() // one waits in the poller at a time, because the deadline that ends a wait is the descriptor's
	defer c.waiting.Unlock()
	conn, err := c.watched.SyscallConn()
	if err != nil {
		return Event{}, err
	}
	if err := c.watched.SetReadDeadline(time.Time{}); err != nil {
		return Event{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.watched.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var event Event
	var failed error
	err = conn.Read(func(uintptr) bool {
		var ok bool
		event, ok, failed = c.take()
		return ok || failed != nil
	})
	switch {
	case err == nil:
		return event, failed
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return Event{}, context.Cause(ctx)
	case c.closing.Load():
		return Event{}, os.ErrClosed
	default:
		return Event{}, err
	}
}

// Events are the events as they come. The sequence ends after an error: the context's, ErrDisconnected, os.ErrClosed.
func (c *Client) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, err := c.Next(ctx)
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Reconnect connects anew, joins again if this process had joined, and monitors again what was monitored. What is refused now is given up.
func (c *Client) Reconnect() (Resumed, error) {
	var resumed Resumed
	handle := cgo.NewHandle(&resumed)
	defer handle.Delete()
	err := c.with(func(f *C.struct_fide) C.int { return C.fide_go_reconnect(f, unsafe.Pointer(&handle)) })
	return resumed, err
}
