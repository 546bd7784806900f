// Package fide tells within microseconds that a process on another host has crashed.
//
//	client, err := fide.Open("")
//	if err != nil {
//		log.Fatal(err)
//	}
//	defer client.Close()
//	if _, err := client.Monitor("db@a", fide.Resources{}); err != nil {
//		log.Fatal(err)
//	}
//	for event, err := range client.Events(ctx) {
//		if err != nil {
//			log.Fatal(err)
//		}
//		if event.Kind == fide.EventFailure {
//			fmt.Println(event.Name, event.Cause, event.Grade)
//		}
//	}
//
// It is libfide (fide.h) in Go's manner, with the same words: calls that wait for an event take a context, errors are told apart by
// errors.Is, times are time.Duration, and stamps (…NS) are nanoseconds of CLOCK_MONOTONIC. A goroutine that waits holds no thread.
//
// cgo finds the library through pkg-config: install libfide and its header (package libfide-dev, or make install), or name the directory of
// fide.pc in PKG_CONFIG_PATH.
package fide
