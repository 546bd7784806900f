------------------------------- MODULE TraceHUC -------------------------------
(* Is a trace of the implementation (specs/README.md, "Traces") a behaviour of HUC? As TraceHSUC. Two freedoms: the implementation may send a    *)
(* proposal of one instance again when it has more to propose, and its DET puts several proposals together; so the value of a decision is not    *)
(* compared with DET's, but decisions of one instance with each other, and their entries with what was handed in.                                *)
EXTENDS HUC, TraceData, Sequences, TLC

VARIABLES at, got, meaning, handed

Line == Trace[at]
Learn(i, w) == (\A x \in meaning : x[1] = i => x[2] = w) /\ meaning' = meaning \cup {<<i, w>>}
WasSent == \E j \in 1..(at - 1) :
  /\ Trace[j].op = "send" /\ Trace[j].k = Line.k /\ Trace[j].f = Line.f /\ Trace[j].i = Line.i /\ Trace[j].v = Line.v
  /\ Trace[j].t \in {0, Line.t}
Gone == Line.t \notin alive \/ Line.i < inst[Line.t]

Hand == Line.op = "propose" /\ handed' = handed \cup Line.e /\ UNCHANGED <<vars, got, meaning>>
Crashes == Line.op = "crash" /\ Crash(Line.p) /\ UNCHANGED <<got, meaning, handed>>
Reports == Line.op = "report" /\ Detect(Line.p, Line.f) /\ UNCHANGED <<got, meaning, handed>>
ReceivesProposal ==
  /\ Line.op = "recv" /\ Line.k = "PROPOSE" /\ WasSent /\ UNCHANGED <<handed, meaning>>
  /\ \/ \E m \in net : /\ m.t = Line.t /\ m.i = Line.i /\ m.f = Line.f
                       /\ IF m.i = inst[m.t] THEN Receive(m) /\ UNCHANGED got ELSE got' = got \cup {m} /\ UNCHANGED vars
     \/ (Gone \/ Line.f \in acks[Line.t]) /\ UNCHANGED <<vars, got>>
SendsProposal ==
  /\ Line.op = "send" /\ Line.k = "PROPOSE" /\ Line.e \subseteq handed
  /\ <<Line.p, Line.i>> \in proposed /\ Line.t = Leader(Line.p)
  /\ UNCHANGED <<vars, got, meaning, handed>>
(* The heartbeat with the decision has left, to all. *)
Beats ==
  /\ Line.op = "send" /\ Line.k = "DECIDE" /\ Line.e \subseteq handed /\ Line.e # {}
  /\ \E m \in pend[Line.p] : m.i = Line.i
  /\ Heartbeat(Line.p) /\ Learn(Line.i, Line.v) /\ UNCHANGED <<got, handed>>
ReceivesBeat ==
  /\ Line.op = "recv" /\ Line.k = "DECIDE" /\ WasSent /\ UNCHANGED <<got, handed>>
  /\ Line.f \in correct[Line.t]
  /\ \E h \in hb : h.t = Line.t /\ h.f = Line.f /\ h.i = Line.i /\ ReceiveHeartbeat(h)
  /\ Learn(Line.i, Line.v)
Decides ==
  /\ Line.op = "decide" /\ Line.e \subseteq handed /\ UNCHANGED <<vars, got, handed>>
  /\ \E d \in decided : d[1] = Line.p /\ d[2] = Line.i
  /\ Learn(Line.i, Line.v)

Visible == (Hand \/ Crashes \/ Reports \/ ReceivesProposal \/ SendsProposal \/ Beats \/ ReceivesBeat \/ Decides) /\ at' = at + 1
(* As late as it can be: each choice would double the states of the rest of the trace. *)
Hidden ==
  /\ \/ Line.op = "send" /\ (Propose(Line.p) \/ Broadcast(Line.p))
     \/ \E m \in net : m.t = Line.p /\ (m.f = Line.p \/ m \in got) /\ Receive(m)
     \/ Line.op = "decide" /\ \E h \in hb : h.t = Line.p /\ h.f = Line.p /\ ReceiveHeartbeat(h)
  /\ UNCHANGED <<at, got, meaning, handed>>

TraceInit == Init /\ at = 1 /\ got = {} /\ meaning = {} /\ handed = {}
TraceNext == at <= Len(Trace) /\ (Visible \/ Hidden)
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, at, got, meaning, handed>>

NotAccepted == at <= Len(Trace)
ASSUME TLCSet(1, 0)
Reached == IF at > TLCGet(1) THEN TLCSet(1, at) /\ PrintT(<<"reached", at>>) ELSE TRUE
=============================================================================
