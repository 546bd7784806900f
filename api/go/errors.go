package fide

// #include <fide.h>
import "C"

// ErrorCode is why a call failed: a negative number of enum fide_error.
type ErrorCode int

// Error is a call that failed: its Code for programs, its Text (what, why, what to do) for people. Compare it with the Err… of this package by errors.Is.
type Error struct {
	Code ErrorCode
	Text string
}

func (e *Error) Error() string { return "fide: " + e.Text }

// Is tells whether target is the Err… of the same code.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

func named(code C.int) *Error {
	return &Error{ErrorCode(code), C.GoString(C.fide_strerror(code))}
}

// What errors of this package are, by errors.Is.
var (
	ErrInvalid      error = named(C.FIDE_EINVAL)        // the call or the agent's answer makes no sense
	ErrPermission   error = named(C.FIDE_EPERM)         // not allowed to this user
	ErrNotFound     error = named(C.FIDE_ENOTFOUND)     // no such process, host or verdict
	ErrExists       error = named(C.FIDE_EEXISTS)       // the name is taken
	ErrTooLarge     error = named(C.FIDE_ETOOLARGE)     // larger than granted
	ErrFull         error = named(C.FIDE_EFULL)         // no room for more, now
	ErrVersion      error = named(C.FIDE_EVERSION)      // agent and library come from different releases
	ErrUnsupported  error = named(C.FIDE_EUNSUPPORTED)  // the agent cannot do this on its host
	ErrDisconnected error = named(C.FIDE_EDISCONNECTED) // no agent, or it went away; says nothing of anything monitored
	ErrSystem       error = named(C.FIDE_ESYSTEM)       // a system call failed
	ErrAmbiguous    error = named(C.FIDE_EAMBIGUOUS)    // several processes match
	ErrFenced       error = named(C.FIDE_EFENCED)       // this process's gate is closed
	ErrNotSent      error = named(C.FIDE_ENOTSENT)      // a heartbeat is not known to have left in time
	ErrInternal     error = named(C.FIDE_EINTERNAL)     // a bug in the library
)

// failure is this thread's last error; the caller has locked the thread.
func failure(code C.int) error {
	return &Error{ErrorCode(code), C.GoString(C.fide_last_error_text())}
}
