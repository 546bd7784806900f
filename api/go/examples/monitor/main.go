// Monitor monitors a process of another host and says what becomes of it: go run ./examples/monitor db@a.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

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
	for event, err := range client.Events(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		if event.Kind == fide.EventFailure {
			fmt.Println(event.Name, event.Cause, event.Grade, event.ID)
		}
	}
}
