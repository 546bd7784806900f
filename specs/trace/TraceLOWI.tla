------------------------------ MODULE TraceLOWI ------------------------------
(* Is a trace of LOWI, of the software core or of the engine in hardware (specs/README.md, "Traces"), a behaviour of Rounds.tla? Each line is a  *)
(* step of the member it names, or a check of what that step did. What a member does by itself, to deliver a round whose copies are all there and *)
(* to decide its own when they have left, stays hidden between the lines. Accepted: NotAccepted is violated, for then a behaviour reaches the end. *)
EXTENDS Rounds, TraceData, TLC

VARIABLES
  at,     \* the next line
  handed  \* entries that were handed in

Line == Trace[at]
Rest == UNCHANGED handed

Init ==
  /\ now = 0 /\ up = [p \in Member |-> "off"] /\ mem = [p \in Member |-> {}] /\ last = [p \in Member |-> 0]
  /\ lead = [p \in Member |-> 1] /\ heard = [p \in Member |-> 0] /\ live = [p \in Member |-> FALSE] /\ nxt = [p \in Member |-> 1]
  /\ rep = [p \in Member |-> {}] /\ open = [p \in Member |-> {}] /\ mine = [p \in Member |-> <<>>] /\ out = [p \in Member |-> <<>>]
  /\ log = [p \in Member |-> {}] /\ net = {} /\ sent = {} /\ at = 1 /\ handed = {}

(* Time stands at the line's. *)
Time == now < Line.s /\ now' = Line.s /\ UNCHANGED <<up, mem, last, lead, heard, live, nxt, rep, open, mine, out, log, net, sent, at, handed>>

Round(c) == c.r = Line.r /\ c.i = Line.i /\ c.v = Line.v /\ c.at = Line.t
Hidden ==
  /\ \/ \E q \in Member : \E o \in open[q] : \E w \in Changes : w.v = o.v /\ Deliver(q, o, w.j, w.l)
     \/ \E p \in Member : Settles(p) /\ \E w \in Changes : w.v = mine[p][1].v /\ Settle(p, w.j, w.l)
  /\ UNCHANGED <<at, handed>>
AtRest == \A p \in Member : ~Delivers(p) /\ ~Settles(p)

Hands == Line.op = "propose" /\ handed' = handed \cup Line.e /\ UNCHANGED vars
Starting == Line.op = "start" /\ Start(Line.p, Line.k = 1, Line.r, Line.f, Line.i, Line.m) /\ Rest
(* The round is spoken with its first copy; the stamp is in the packet. *)
Speaks ==
  /\ Line.op = "send" /\ mine[Line.p] = <<>> /\ Line.t <= now + Slack /\ Line.e \subseteq handed
  /\ \A c \in net : c.r # Line.r   \* OneSpeaker
  /\ Speak(Line.p, Line.t, Line.r, Line.i, Line.v) /\ UNCHANGED <<at, handed>>
Sends ==
  /\ Line.op = "send" /\ mine[Line.p] # <<>> /\ mine[Line.p][1].r = Line.r /\ mine[Line.p][1].i = Line.i /\ mine[Line.p][1].v = Line.v
  /\ Leave(Line.p, Line.k) /\ Rest
Receives ==
  /\ Line.op = "recv" /\ Rest
  /\ \E c \in net : c.f = Line.f /\ Round(c) /\ <<c.f, c.r, Line.k>> \in sent
       /\ IF Gone(Line.p, c) THEN UNCHANGED vars ELSE Receive(Line.p, Line.k, c)
Decides == Line.op = "decide" /\ Decide(Line.p, Line.i, Line.v) /\ Rest
Reports == Line.op = "report" /\ Report(Line.p, Line.f) /\ Rest
Halts == Line.op = "halt" /\ Ends(Line.p, "halted") /\ Rest
Crashes == Line.op = "crash" /\ Ends(Line.p, "dead") /\ Rest

Visible ==
  /\ AtRest /\ now = Line.s
  /\ Hands \/ Starting \/ Sends \/ Receives \/ Decides \/ Reports \/ Halts \/ Crashes
  /\ at' = at + 1

TraceNext == at <= Len(Trace) /\ (Hidden \/ Visible \/ (AtRest /\ (Time \/ (now = Line.s /\ Speaks))))
TraceSpec == Init /\ [][TraceNext]_<<vars, at, handed>>

NotAccepted == at <= Len(Trace)
ASSUME TLCSet(1, 0)
Reached == IF at > TLCGet(1) THEN TLCSet(1, at) /\ PrintT(<<"reached", at>>) ELSE TRUE
=============================================================================
