package fide

// #include <fide.h>
import "C"

import (
	"os"
	"sync"
	"time"
)

// Progress is a counter by which this process shows that it moves. Any method may be called from any goroutine.
type Progress struct {
	mu     sync.RWMutex
	client *Client
	p      *C.struct_fide_progress
}

// Progress makes a counter of this process, which has joined: while it is busy it must move within limit (10 ms to a day), or the process is hung to all who
// monitor it. It is busy from the start. A process has 16.
func (c *Client) Progress(limit time.Duration) (*Progress, error) {
	progress := &Progress{client: c}
	err := c.with(func(f *C.struct_fide) C.int {
		return C.fide_progress_open(f, C.uint64_t(max(limit, 0).Nanoseconds()), &progress.p)
	})
	if err != nil {
		return nil, err
	}
	return progress, nil
}

// SetLimit changes the limit; what was counted begins anew.
func (p *Progress) SetLimit(limit time.Duration) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.p == nil {
		return os.ErrClosed
	}
	return p.client.with(func(f *C.struct_fide) C.int {
		return C.fide_progress_limit(f, p.p, C.uint64_t(max(limit, 0).Nanoseconds()))
	})
}

// Tick says that it moved.
func (p *Progress) Tick() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	C.fide_progress_tick(p.p)
}

// Begin says that an operation begins: until as many End, the counter must move.
func (p *Progress) Begin() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.p != nil {
		C.fide_progress_begin(p.p)
	}
}

// End says that an operation ended; with the last of them the counter is idle, and nothing is expected of it.
func (p *Progress) End() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.p != nil {
		C.fide_progress_end(p.p)
	}
}

// Close ends the counter: nothing is expected of it any more.
func (p *Progress) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.p == nil {
		return os.ErrClosed
	}
	C.fide_progress_close(p.p)
	p.p = nil
	return nil
}
