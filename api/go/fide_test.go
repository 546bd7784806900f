package fide_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	fide "github.com/fide-project/fide/api/go"
)

// A process of a host is this program again, in a role.
func TestMain(m *testing.M) {
	role := os.Getenv("FIDE_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	client, err := fide.Open("")
	if err == nil {
		err = act(client, role, os.Getenv("FIDE_TEST_NAME"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func act(client *fide.Client, role, name string) error {
	if _, _, err := client.Join(name, 64); err != nil {
		return err
	}
	switch role {
	case "talk":
		fmt.Println("joined")
		for count := 0; ; count++ {
			if err := client.Piggyback(fmt.Appendf(nil, "load %d", count)); err != nil && !errors.Is(err, fide.ErrFull) {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
	case "hang":
		progress, err := client.Progress(50 * time.Millisecond)
		if err != nil {
			return err
		}
		fmt.Println("joined")
		for range 20 {
			progress.Tick()
			time.Sleep(10 * time.Millisecond)
		}
		progress.Begin()
		time.Sleep(time.Hour)
	case "leave":
		fmt.Println("joined")
		time.Sleep(500 * time.Millisecond)
		return client.Quit()
	}
	return nil
}

// Real agents in a lab, made by scripts/bindings: FIDE_LAB is its name, FIDE the program.
type lab struct {
	*testing.T
	name, fide string
}

func inLab(t *testing.T) lab {
	name := os.Getenv("FIDE_LAB")
	if name == "" {
		t.Skip("SKIPPED: no lab (FIDE_LAB): scripts/bindings makes one")
	}
	return lab{t, name, os.Getenv("FIDE")}
}

func (l lab) socket(host string) string {
	return filepath.Join("/run/fide/lab", l.name, host, "fided.sock")
}

func (l lab) command(host string, line ...string) *exec.Cmd {
	return exec.Command(l.fide, append([]string{"lab", "--name", l.name, "exec", host, "--"}, line...)...)
}

func (l lab) start(command *exec.Cmd) (*exec.Cmd, *bufio.Reader) {
	l.Helper()
	out, err := command.StdoutPipe()
	if err == nil {
		command.Stderr = os.Stderr
		err = command.Start()
	}
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { command.Process.Kill(); io.Copy(io.Discard, out); command.Wait() })
	return command, bufio.NewReader(out)
}

// victim is a process of h2 that its agent watches under a name.
func (l lab) victim(name string) *os.Process {
	l.Helper()
	command, _ := l.start(l.command("h2", "sleep", "600"))
	comm := fmt.Sprintf("/proc/%d/comm", command.Process.Pid)
	for text := ""; text != "sleep"; {
		read, err := os.ReadFile(comm)
		if err != nil {
			l.Fatal(err)
		}
		text = strings.TrimSpace(string(read))
	}
	if out, err := l.command("h2", l.fide, "monitor", name, "--pid", fmt.Sprint(command.Process.Pid)).CombinedOutput(); err != nil {
		l.Fatalf("%v: %s", err, out)
	}
	return command.Process
}

// actor is this program in a role on h2, once it has joined.
func (l lab) actor(role, name string) *os.Process {
	l.Helper()
	program, err := os.Executable()
	if err != nil {
		l.Fatal(err)
	}
	command := l.command("h2", program)
	command.Env = append(os.Environ(), "FIDE_TEST_ROLE="+role, "FIDE_TEST_NAME="+name)
	command, out := l.start(command)
	if line, err := out.ReadString('\n'); err != nil || line != "joined\n" {
		l.Fatalf("%s: %q %v", role, line, err)
	}
	return command.Process
}

func (l lab) maintenance(words ...string) {
	l.Helper()
	if out, err := l.command("h2", append([]string{l.fide, "maintenance"}, words...)...).CombinedOutput(); err != nil {
		l.Fatalf("%v: %s", err, out)
	}
}

func (l lab) open(host string) *fide.Client {
	l.Helper()
	client, err := fide.Open(l.socket(host))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { client.Close() })
	return client
}

func (l lab) monitorAlive(client *fide.Client, target string) fide.Monitored {
	l.Helper()
	for range 500 {
		now, err := client.Monitor(target, fide.Resources{Pbsize: 64})
		if err != nil {
			l.Fatal(err)
		}
		if now.Alive {
			return now
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.Fatalf("%s is not alive", target)
	panic("unreachable")
}

// until gives the first event of a kind, and refuses others that are named.
func (l lab) until(client *fide.Client, kind fide.EventKind, not ...fide.EventKind) fide.Event {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for event, err := range client.Events(ctx) {
		if err != nil {
			l.Fatalf("waiting for %s: %v", kind, err)
		}
		if event.Kind == kind {
			return event
		}
		for _, wrong := range not {
			if event.Kind == wrong {
				l.Fatalf("%+v", event)
			}
		}
	}
	panic("unreachable")
}

func TestWithoutAnAgentTheErrorSaysWhatToDo(t *testing.T) {
	_, err := fide.Open("/nonexistent/fided.sock")
	if !errors.Is(err, fide.ErrDisconnected) || errors.Is(err, fide.ErrNotFound) || !strings.Contains(err.Error(), "systemctl start fided") {
		t.Fatal(err)
	}
	var failed *fide.Error
	if !errors.As(err, &failed) || failed.Code != -9 {
		t.Fatalf("%#v", err)
	}
}

func TestACrashIsToldWithCauseGradeAndStamps(t *testing.T) {
	l := inLab(t)
	victim, client := l.victim("go-db"), l.open("h1")
	if client.Node() != "h1" {
		t.Fatal(client.Node())
	}
	now := l.monitorAlive(client, "go-db@h2")
	if now.State != fide.TargetAlive || now.App == 0 || now.Timeout <= 0 {
		t.Fatalf("%+v", now)
	}
	victim.Kill()
	failure := l.until(client, fide.EventFailure)
	if failure.Name != "go-db@h2" || failure.Grade != fide.GradeCertain || !failure.Cause.IsCrash() || failure.Code != int(syscall.SIGKILL) {
		t.Fatalf("%+v", failure)
	}
	if failure.ID == "" || failure.ReceivedNS == 0 || failure.ReceivedNS > fide.NowNS() {
		t.Fatalf("%+v", failure)
	}
	if failure.Cause == fide.CauseDoomed {
		if confirmed := l.until(client, fide.EventConfirmed); confirmed.Cause != fide.CauseKilled || !confirmed.Confirms {
			t.Fatalf("%+v", confirmed)
		}
	}
	ended, err := client.Monitor("go-db@h2", fide.Resources{})
	if err != nil || ended.Alive || ended.State != fide.TargetEnded || ended.Code != int(syscall.SIGKILL) {
		t.Fatalf("%+v %v", ended, err)
	}
	if err := client.Unmonitor("go-db@h2"); err != nil {
		t.Fatal(err)
	}
	if err := client.Unmonitor("go-db@h2"); !errors.Is(err, fide.ErrNotFound) {
		t.Fatal(err)
	}
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	l := inLab(t)
	client := l.open("h1")
	if _, err := client.Monitor("no@such@thing", fide.Resources{}); !errors.Is(err, fide.ErrInvalid) {
		t.Fatal(err)
	}
	if now, err := client.Monitor("x@nohost", fide.Resources{}); err != nil || now.State != fide.TargetNoHost {
		t.Fatalf("%+v %v", now, err)
	}
	if err := client.Piggyback([]byte("x")); !errors.Is(err, fide.ErrInvalid) || client.Pbsize() != 0 {
		t.Fatal(err)
	}
	if err := client.Piggyback(nil); !errors.Is(err, fide.ErrInvalid) {
		t.Fatal(err)
	}
	client.Close()
	if _, err := client.Monitor("*", fide.Resources{}); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	if err := client.Close(); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
}

func TestAWaitEndsWithItsContextAndWithTheClient(t *testing.T) {
	l := inLab(t)
	client := l.open("h1")
	for range 3 { // a wait that was given up loses nothing of the next
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := client.Next(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 2*time.Second {
			t.Fatal(err, time.Since(begun))
		}
	}
	if _, err := client.Next(cancelled()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := client.Next(context.Background())
		ended <- err
	}()
	time.Sleep(50 * time.Millisecond)
	client.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the wait goes on after Close")
	}
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestMessagesRideOnHeartbeatsUntilTheCrash(t *testing.T) {
	l := inLab(t)
	talker, client := l.actor("talk", "go-talker"), l.open("h1")
	l.monitorAlive(client, "go-talker@h2")
	last, count := -1, 0
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		event, err := client.Next(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind == fide.EventFailure {
			break
		}
		if event.Kind != fide.EventPiggyback {
			continue
		}
		var number int
		if _, err := fmt.Sscanf(string(event.Data), "load %d", &number); err != nil || number <= last || event.Name != "go-talker@h2" {
			t.Fatalf("%+v behind %d", event, last)
		}
		last = number
		if count++; count == 20 {
			talker.Kill()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	for event, err := range client.Events(ctx) {
		if err == nil && event.Kind == fide.EventPiggyback {
			t.Fatalf("after its failure: %+v", event)
		}
	}
	if count < 20 {
		t.Fatal(count)
	}
}

func TestWhoQuitsDoesNotCrashAndWhoHangsIsTold(t *testing.T) {
	l := inLab(t)
	client := l.open("h1")
	for _, target := range []string{"go-leaver@h2", "go-hangs@h2"} {
		if _, err := client.Monitor(target, fide.Resources{}); err != nil {
			t.Fatal(err)
		}
	}
	l.actor("leave", "go-leaver")
	if left := l.until(client, fide.EventFailure); left.Cause != fide.CauseLeft || left.Cause.IsCrash() {
		t.Fatalf("%+v", left)
	}
	l.actor("hang", "go-hangs")
	if hung := l.until(client, fide.EventHung, fide.EventFailure); hung.Name != "go-hangs@h2" {
		t.Fatalf("%+v", hung)
	}
}

func TestWhatIsInMaintenanceIsTold(t *testing.T) {
	l := inLab(t)
	client := l.open("h1")
	if left, err := client.Maintenance("go-planned@h2"); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	l.maintenance("on", "go-planned@h2", "--for", "5m")
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, err := client.Maintenance("go-planned@h2")
		if err != nil || left > 5*time.Minute || time.Now().After(deadline) {
			t.Fatal(left, err)
		}
		if left > 4*time.Minute {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	l.maintenance("off", "go-planned@h2")
	if _, err := client.Maintenance("go-planned"); !errors.Is(err, fide.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAfterReconnectingWhatWasMonitoredIsMonitored(t *testing.T) {
	l := inLab(t)
	victim, client := l.victim("go-stays"), l.open("h1")
	l.monitorAlive(client, "go-stays@h2")
	resumed, err := client.Reconnect()
	if err != nil || resumed.Rejoined || len(resumed.Targets) != 1 {
		t.Fatalf("%+v %v", resumed, err)
	}
	if one := resumed.Targets[0]; one.Target != "go-stays@h2" || one.Err != nil || !one.Now.Alive {
		t.Fatalf("%+v", one)
	}
	victim.Kill()
	if failure := l.until(client, fide.EventFailure); failure.Name != "go-stays@h2" {
		t.Fatalf("%+v", failure)
	}
}
