// Monitor monitors a process of another host and says what becomes of it: go run ./examples/monitor db@a.
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
	client, err := fide.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	now, err := client.Monitor(os.Args[1], fide.Resources{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(os.Args[1], now.State)
	for {
		event, err := client.Next(context.Background())
		for errors.Is(err, fide.ErrDisconnected) { // its agent restarts: what ends meanwhile is reported then
			time.Sleep(10 * time.Millisecond)
			_, err = client.Reconnect()
		}
		if err != nil {
			log.Fatal(err)
		}
		if event.Kind == fide.EventFailure {
			fmt.Println(event.Name, event.Cause, event.Grade, event.ID)
		}
	}
}
