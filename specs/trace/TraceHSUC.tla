------------------------------ MODULE TraceHSUC ------------------------------
(* Is a trace of the implementation (specs/README.md, "Traces") a behaviour of HSUC? Each line is a step of the member it names, or a check of   *)
(* what that step did; what the implementation does within itself (messages to itself, its own PROPOSE and BROADCAST) stays hidden between the   *)
(* lines of that member. Accepted: NotAccepted is violated, for then a behaviour reaches the end.                                                *)
EXTENDS HSUC, TraceData, Sequences, TLC

VARIABLES
  at,      \* the next line
  got,     \* messages that came before their instance, and wait
  meaning, \* which value of the trace a value of the specification is, by instance (two leaders may put together the same entries)
  handed   \* entries that were handed in

Line == Trace[at]
Known(i, v, w) == \A x \in meaning : x[1] = i => (x[2] = v => x[3] = w)
Learn(i, v, w) == Known(i, v, w) /\ meaning' = meaning \cup {<<i, v, w>>}
Same(m) == m.k = Line.k /\ m.f = Line.f /\ m.t = Line.t /\ m.i = Line.i
WasSent == \E j \in 1..(at - 1) : Trace[j].op = "send" /\ Same(Trace[j]) /\ Trace[j].v = Line.v
(* Of no effect any more where it goes. *)
Gone == \/ Line.t \notin alive \/ Line.i < inst[Line.t]
        \/ Line.k = "DECIDE" /\ <<Line.i, None>> \in delivered[Line.t]
Value(m) == IF m.k = "ACK" THEN UNCHANGED meaning ELSE Learn(m.i, m.v, Line.v)

Hand == Line.op = "propose" /\ handed' = handed \cup Line.e /\ UNCHANGED <<vars, got, meaning>>
Crashes == Line.op = "crash" /\ Crash(Line.p) /\ UNCHANGED <<got, meaning, handed>>
Reports == Line.op = "report" /\ Detect(Line.p, Line.f) /\ UNCHANGED <<got, meaning, handed>>
Receives ==
  /\ Line.op = "recv" /\ WasSent /\ UNCHANGED handed
  /\ \/ \E m \in net : Same(m) /\ m.i = inst[m.t] /\ Receive(m) /\ Value(m) /\ UNCHANGED got
     \/ \E m \in net : Same(m) /\ m.i > inst[m.t] /\ Value(m) /\ got' = got \cup {m} /\ UNCHANGED vars
     \/ Gone /\ UNCHANGED <<vars, got, meaning>>
Sends ==
  /\ Line.op = "send" /\ Line.e \subseteq handed /\ UNCHANGED <<vars, got, handed>>
  /\ \/ \E m \in net : Same(m) /\ Value(m)
     \/ /\ Gone
        /\ IF Line.k = "ACK" THEN UNCHANGED meaning ELSE \E v \in Member : Learn(Line.i, v, Line.v)
Decides ==
  /\ Line.op = "decide" /\ Line.e \subseteq handed /\ UNCHANGED <<vars, got, handed>>
  /\ \E d \in decided : d[1] = Line.p /\ d[2] = Line.i /\ Learn(d[2], d[3], Line.v)

Visible == (Hand \/ Crashes \/ Reports \/ Receives \/ Sends \/ Decides) /\ at' = at + 1
(* Only what a line needs is done, and as late as it can be: each choice would double the states of the rest of the trace. So only who leads      *)
(* proposes, and has nothing of a leader before it: what others propose stays with them until they lead.                                         *)
Due == Line.op \in {"send", "decide"} /\ Line.p = Leader(Line.p)
Hidden ==
  /\ \/ Due /\ proposal[Line.p] = None /\ Propose(Line.p)
     \/ Due /\ Broadcast(Line.p)
     \/ \E m \in net : m.t = Line.p /\ (m.f = Line.p \/ m \in got) /\ Receive(m)
  /\ UNCHANGED <<at, got, meaning, handed>>

TraceInit == Init /\ at = 1 /\ got = {} /\ meaning = {} /\ handed = {}
TraceNext == at <= Len(Trace) /\ (Visible \/ Hidden)
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, at, got, meaning, handed>>

NotAccepted == at <= Len(Trace)
ASSUME TLCSet(1, 0)
Reached == IF at > TLCGet(1) THEN TLCSet(1, at) /\ PrintT(<<"reached", at>>) ELSE TRUE
=============================================================================
