// SPDX-License-Identifier: Apache-2.0

// A member of a cluster by hashicorp/memberlist, which prints who joins and who leaves. Two lines, marked, make it ask FiDe before it believes that somebody
// has gone (fide.go); with FIDE=off they do nothing, and it is what it was.
//
//	CGO_CFLAGS=$(pkg-config --cflags fide) CGO_LDFLAGS=$(pkg-config --libs fide) go build
//	./memberlist NAME ADDRESS [ADDRESS OF A MEMBER]
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/hashicorp/memberlist"
)

type printer struct{}

func (printer) NotifyJoin(n *memberlist.Node)   { fmt.Println("join", n.Name) }
func (printer) NotifyLeave(n *memberlist.Node)  { fmt.Println("leave", n.Name) }
func (printer) NotifyUpdate(n *memberlist.Node) {}

func main() {
	config := memberlist.DefaultLANConfig()
	config.Name, config.BindAddr = os.Args[1], os.Args[2]
	config.ProbeInterval, config.ProbeTimeout, config.SuspicionMult = 200*time.Millisecond, 100*time.Millisecond, 3
	config.SuspicionMaxTimeoutMult = 1
	config.LogOutput = io.Discard
	config.Events = printer{}

	checked := checkedBy(config, "member") // fide
	list, err := memberlist.Create(config)
	if err != nil {
		log.Fatal(err)
	}
	checked.begin(list) // fide
	if len(os.Args) > 3 {
		if _, err := list.Join(os.Args[3:]); err != nil {
			log.Fatal(err)
		}
	}
	select {}
}
