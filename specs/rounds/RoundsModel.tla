----------------------------- MODULE RoundsModel -----------------------------
(* Rounds.tla with a network and clocks: what was stamped arrives within DeltaI, but for MaxLost copies; members start within DeltaW.          *)
EXTENDS Rounds, TLC

CONSTANTS MaxCrash, MaxTime, MaxRound, MaxLate

VARIABLES
  way,   \* copies under way: [c, k, t]
  lates  \* copies that were held up longer than DeltaI

Value(p) == ToString(p)

Init ==
  /\ now = 0 /\ up = [p \in Member |-> "off"] /\ mem = [p \in Member |-> Member] /\ last = [p \in Member |-> 0]
  /\ lead = [p \in Member |-> 1] /\ heard = [p \in Member |-> 0] /\ live = [p \in Member |-> FALSE] /\ nxt = [p \in Member |-> 1]
  /\ rep = [p \in Member |-> {}] /\ open = [p \in Member |-> {}] /\ mine = [p \in Member |-> <<>>] /\ out = [p \in Member |-> <<>>]
  /\ log = [p \in Member |-> {}] /\ net = {} /\ sent = {} /\ way = {} /\ lates = {}

Running == { p \in Member : up[p] \in {"off", "on"} }
Rest == UNCHANGED <<way, lates>>
Starting == \E p \in Member : now < DeltaW /\ Start(p, TRUE, 0, 1, 1, Member) /\ Rest
Speaking == \E p \in Member : last[p] < MaxRound /\ \E v \in {Bottom, Value(p)} : Speak(p, now, last[p] + 1 + Slot(p, p), nxt[p], v) /\ Rest
Leaving == \E p \in Member, k \in Path :
  /\ Leave(p, k) /\ UNCHANGED lates
  /\ way' = way \cup { [c |-> c, k |-> k, t |-> t] : c \in { c \in net : c.f = p /\ c.r = mine[p][1].r }, t \in Running \ {p} }
(* Who receives what it may not go on with stops. *)
Arriving == \E w \in way :
  /\ way' = way \ {w} /\ UNCHANGED lates
  /\ IF up[w.t] # "on" \/ Gone(w.t, w.c) THEN UNCHANGED vars
     ELSE IF Sound(w.t, w.c) THEN Receive(w.t, w.k, w.c) ELSE Ends(w.t, "halted")
Delivering == \E q \in Member : \E o \in open[q] : Deliver(q, o, {}, {}) /\ Rest
Settling == \E p \in Member : Settle(p, {}, {}) /\ Rest
Deciding == \E p \in Member : out[p] # <<>> /\ Decide(p, out[p][1][1], out[p][1][2]) /\ Rest
Crashing == \E p \in Running : Cardinality({ q \in Member : up[q] = "dead" }) < MaxCrash /\ up[p] = "on" /\ Ends(p, "dead") /\ Rest
Reporting == Hurry /\ \E p, q \in Member : q \notin Reported(p) /\ Report(p, q) /\ Rest
HoldingUp == \E w \in way : w \notin lates /\ Cardinality(lates) < MaxLate /\ lates' = lates \cup {w} /\ UNCHANGED <<vars, way>>
(* A copy is missing, or the slot has passed: a safe exit. *)
Overdue(p) == up[p] = "on" /\ (\/ \E o \in open[p] : now >= o.at + DeltaI
                               \/ live[p] /\ p \in Cand(p) /\ ~Alone(p) /\ now >= Begins(p, Slot(p, p)) + Late /\ mine[p] = <<>> /\ last[p] < MaxRound)
Exiting == \E p \in Member : Overdue(p) /\ Ends(p, "halted") /\ Rest
Tick ==
  /\ now < MaxTime /\ \A w \in way : w \in lates \/ now < w.c.at + DeltaI
  /\ \A p \in Member : ~Overdue(p) /\ (up[p] = "off" => now + 1 < DeltaW) /\ (up[p] = "on" => mine[p] = <<>>)
  /\ \A p \in Member : ~Delivers(p) /\ out[p] = <<>>
  /\ now' = now + 1
  /\ UNCHANGED <<up, mem, last, lead, heard, live, nxt, rep, open, mine, out, log, net, sent, way, lates>>

Next == Starting \/ Speaking \/ Leaving \/ Arriving \/ Delivering \/ Settling \/ Deciding \/ Crashing \/ Reporting \/ HoldingUp \/ Exiting \/ Tick
Spec == Init /\ [][Next]_<<vars, way, lates>>
=============================================================================
