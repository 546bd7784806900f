package fide

// #include <fide.h>
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Called by fide_reconnect on the thread that called it.
//
//export fideGoResumed
func fideGoResumed(target *C.char, code C.int, now *C.struct_fide_monitored, user unsafe.Pointer) {
	resumed := (*(*cgo.Handle)(user)).Value().(*Resumed)
	var err error
	if code != C.FIDE_OK {
		err = failure(code)
	}
	if target == nil {
		resumed.Rejoined, resumed.JoinErr = true, err
		return
	}
	one := ResumedTarget{Target: C.GoString(target), Err: err}
	if now != nil {
		one.Now = monitored(now)
	}
	resumed.Targets = append(resumed.Targets, one)
}
