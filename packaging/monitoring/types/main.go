// Reads a dashboard into Grafana's own types, which refuse what they do not know and miss what they require:
//
//	go run . ../fide.dashboard.json
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: types FILE")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func check(file string) error {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	plugins.RegisterDefaultPlugins()
	var read dashboard.Dashboard
	// A list of errors that is empty comes as an error without text.
	if err := read.UnmarshalJSONStrict(bytes); err != nil && err.Error() != "" {
		return err
	}
	if err := read.Validate(); err != nil && err.Error() != "" {
		return err
	}
	if len(read.Panels) == 0 {
		return fmt.Errorf("no panels")
	}
	fmt.Printf("%s: %d panels and rows\n", file, len(read.Panels))
	return nil
}
