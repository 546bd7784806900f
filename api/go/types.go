package fide

// #include <fide.h>
import "C"

import "strconv"

// EventKind is what an event is. Later versions may have more: treat unknown ones as EventOther.
type EventKind uint32

// The kinds of events.
const (
	// EventFailure: a monitored process is ending or gone, once for each instance of it; Cause says whether it is a crash.
	EventFailure EventKind = C.FIDE_EVENT_FAILURE
	// EventConfirmed: the end of a process that failed as "doomed" was seen; Cause and Code are final.
	EventConfirmed EventKind = C.FIDE_EVENT_CONFIRMED
	// EventMonitored: a process is monitored from now on: it came, or came back as a new instance.
	EventMonitored EventKind = C.FIDE_EVENT_MONITORED
	// EventHost: about a host, a path, an agent or this observer: never about a process.
	EventHost EventKind = C.FIDE_EVENT_HOST
	// EventPiggyback: a monitored process sent Data; Number is its heartbeat's.
	EventPiggyback EventKind = C.FIDE_EVENT_PIGGYBACK
	// EventTimeoutChanged: Number is the new timeout towards Node and App, nanoseconds.
	EventTimeoutChanged EventKind = C.FIDE_EVENT_TIMEOUT_CHANGED
	// EventPbsizeChanged: Number is what this process may piggyback from now on, bytes.
	EventPbsizeChanged EventKind = C.FIDE_EVENT_PBSIZE_CHANGED
	// EventMonitorReq: somebody began to monitor this process and would like Number bytes of piggyback.
	EventMonitorReq EventKind = C.FIDE_EVENT_MONITOR_REQ
	// EventLost: Number events were lost: monitor again what matters.
	EventLost EventKind = C.FIDE_EVENT_LOST
	// EventAgentGone: the agent hung up; nothing of what it monitored has failed; Client.Reconnect then.
	EventAgentGone EventKind = C.FIDE_EVENT_AGENT_GONE
	// EventOther: something this version does not know.
	EventOther EventKind = C.FIDE_EVENT_OTHER
	// EventHung: a monitored process is there and makes no progress; not a failure.
	EventHung EventKind = C.FIDE_EVENT_HUNG
	// EventProgressing: a process that was hung moves again.
	EventProgressing EventKind = C.FIDE_EVENT_PROGRESSING
	// EventFenced: this host is fenced, and others may have taken over: stop acting.
	EventFenced EventKind = C.FIDE_EVENT_FENCED
	// EventRecovered: the fence was opened again, in a new incarnation: begin anew.
	EventRecovered EventKind = C.FIDE_EVENT_RECOVERED
)

var kindNames = map[EventKind]string{
	EventFailure:        "failure",
	EventConfirmed:      "confirmed",
	EventMonitored:      "monitored",
	EventHost:           "host",
	EventPiggyback:      "piggyback",
	EventTimeoutChanged: "timeout-changed",
	EventPbsizeChanged:  "pbsize-changed",
	EventMonitorReq:     "monitor-req",
	EventLost:           "lost",
	EventAgentGone:      "agent-gone",
	EventOther:          "other",
	EventHung:           "hung",
	EventProgressing:    "progressing",
	EventFenced:         "fenced",
	EventRecovered:      "recovered",
}

func (k EventKind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return "event " + strconv.Itoa(int(k))
}

// Cause is what happened.
type Cause uint32

// The causes.
const (
	CauseNone           Cause = C.FIDE_CAUSE_NONE
	CauseExited         Cause = C.FIDE_CAUSE_EXITED
	CauseKilled         Cause = C.FIDE_CAUSE_KILLED
	CauseDoomed         Cause = C.FIDE_CAUSE_DOOMED
	CauseLeft           Cause = C.FIDE_CAUSE_LEFT
	CauseAgentLost      Cause = C.FIDE_CAUSE_AGENT_LOST
	CauseSilentHost     Cause = C.FIDE_CAUSE_SILENT_HOST
	CausePathDown       Cause = C.FIDE_CAUSE_PATH_DOWN
	CauseContractBroken Cause = C.FIDE_CAUSE_CONTRACT_BROKEN
	CauseIsolated       Cause = C.FIDE_CAUSE_ISOLATED
	CauseHung           Cause = C.FIDE_CAUSE_HUNG
	CauseOutOfMemory    Cause = C.FIDE_CAUSE_OUT_OF_MEMORY
	CauseUnreachable    Cause = C.FIDE_CAUSE_UNREACHABLE
	CauseReplaced       Cause = C.FIDE_CAUSE_REPLACED
	CausePathUp         Cause = C.FIDE_CAUSE_PATH_UP
	CauseReturned       Cause = C.FIDE_CAUSE_RETURNED
	CauseContractKept   Cause = C.FIDE_CAUSE_CONTRACT_KEPT
	CauseRejoined       Cause = C.FIDE_CAUSE_REJOINED
	CauseObserverPaused Cause = C.FIDE_CAUSE_OBSERVER_PAUSED
	CauseNameClash      Cause = C.FIDE_CAUSE_NAME_CLASH
	CauseForeignTraffic Cause = C.FIDE_CAUSE_FOREIGN_TRAFFIC
	CauseMonitored      Cause = C.FIDE_CAUSE_MONITORED
	CauseInterface      Cause = C.FIDE_CAUSE_INTERFACE
	CauseLocal          Cause = C.FIDE_CAUSE_LOCAL
	CauseFenced         Cause = C.FIDE_CAUSE_FENCED
	CauseRecovered      Cause = C.FIDE_CAUSE_RECOVERED
	CauseProgressing    Cause = C.FIDE_CAUSE_PROGRESSING
)

func (c Cause) String() string { return C.GoString(C.fide_cause_name(C.uint32_t(c))) }

// IsCrash tells whether a process that ended so has crashed: it did not say that it leaves.
func (c Cause) IsCrash() bool {
	switch c {
	case CauseExited, CauseKilled, CauseDoomed, CauseOutOfMemory, CauseReplaced, CauseSilentHost:
		return true
	}
	return false
}

// Grade is how sure a verdict is.
type Grade uint32

// The grades.
const (
	GradeNone Grade = C.FIDE_GRADE_NONE
	// GradeCertain: a kernel saw it, or it announced itself.
	GradeCertain Grade = C.FIDE_GRADE_CERTAIN
	// GradeInferred: silence, judged against a stated contract.
	GradeInferred Grade = C.FIDE_GRADE_INFERRED
)

func (g Grade) String() string { return C.GoString(C.fide_grade_name(C.uint32_t(g))) }

// TargetState is what is known of a target that is monitored from now on. What is not there is waited for.
type TargetState uint32

// The states of targets; 0 of agents that do not say.
const (
	TargetAlive TargetState = C.FIDE_TARGET_ALIVE
	// TargetHung: it runs and makes no progress.
	TargetHung TargetState = C.FIDE_TARGET_HUNG
	// TargetUnobserved: its host's agent is lost, or left: nobody watches it.
	TargetUnobserved TargetState = C.FIDE_TARGET_UNOBSERVED
	// TargetEnded: the last process of that name has ended; see Cause and Code.
	TargetEnded TargetState = C.FIDE_TARGET_ENDED
	// TargetNoProcess: no process of that name was known on that host.
	TargetNoProcess TargetState = C.FIDE_TARGET_NO_PROCESS
	// TargetNoHost: no host of that name was ever heard.
	TargetNoHost TargetState = C.FIDE_TARGET_NO_HOST
)

var stateNames = [...]string{"unknown", "alive", "hung", "unobserved", "ended", "no-process", "no-host"}

func (s TargetState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "state " + strconv.Itoa(int(s))
}
