// Piggyback shows data that rides on heartbeats. On host a: go run ./examples/piggyback join worker; on b: … monitor worker@a.
//
// What was sent before the crash is all that is delivered: nothing of a process comes after its failure was told.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	fide "github.com/fide-project/fide/api/go"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: piggyback join NAME | piggyback monitor NAME@HOST")
	}
	client, err := fide.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if os.Args[1] == "join" {
		err = join(client, os.Args[2])
	} else {
		err = monitor(client, os.Args[2])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func join(client *fide.Client, name string) error {
	_, granted, err := client.Join(name, 64)
	if err != nil {
		return err
	}
	fmt.Printf("%d bytes at a time; kill -9 %d ends it\n", granted, os.Getpid())
	for count := 0; ; count++ {
		err := client.Piggyback(fmt.Appendf(nil, "load %d", count))
		// Full: earlier ones still wait for their heartbeats, and the next message is newer.
		if err != nil && !errors.Is(err, fide.ErrFull) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func monitor(client *fide.Client, target string) error {
	if _, err := client.Monitor(target, fide.Resources{Pbsize: 64}); err != nil {
		return err
	}
	for event, err := range client.Events(context.Background()) {
		switch {
		case err != nil:
			return err
		case event.Kind == fide.EventPiggyback:
			fmt.Printf("%s: %s on heartbeat %d\n", event.Name, event.Data, event.Number)
		case event.Kind == fide.EventFailure:
			fmt.Printf("%s: %s, %s\n", event.Name, event.Cause, event.Grade)
			return nil
		}
	}
	return nil
}
