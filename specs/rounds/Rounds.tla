------------------------------- MODULE Rounds -------------------------------
(* LOWI as it is built (proto/src/consensus/lowi.rs, rtl/core/fide_lowi_core.sv): Alg. 1-3 and section 5.2 of Nano-consensus in rounds and slots. *)
(* LOWI.tla is the paper's text; here every wait is counted from the last round, a round is RSBCAST on all paths, and its sender decides when its *)
(* copies have left. Time is discrete, and the same for all. TraceLOWI.tla judges traces by these actions.                                       *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  N, Paths,
  Period, DeltaI, DeltaW,
  Late,    \* so much later than its slot begins a member may speak: DeltaW - DeltaI in lowi.rs
  Slack,   \* what a trace's times may be off by; 0 in models
  Hurry    \* TRUE: certain reports that all before are dead let a member speak DeltaI after the last one

Member == 1..N
Path == 1..Paths
Bottom == "-"
Max(a, b) == IF a > b THEN a ELSE b

VARIABLES
  now,
  up,      \* by member: "off", "on", "halted", "dead"
  mem,     \* the members as it knows them
  last, lead, heard, \* number, sender and time of the last round that it delivered or sent; 0, the lowest, its start before
  live,    \* it knows when that was: a joiner does not before a round has come
  nxt,     \* the next instance
  rep,     \* certain reports: <<member, when>>
  open,    \* rounds of which copies came, not delivered: [f, r, i, v, got, at]
  mine,    \* its round that leaves: <<>>, or <<[r, i, v, left]>>
  out,     \* decided, and not yet reported to its host: a sequence of <<instance, value>>
  log,     \* reported: <<instance, value>>
  net,     \* rounds that were spoken: [f, r, i, v, at]
  sent     \* copies that left: <<from, round, path>>

vars == <<now, up, mem, last, lead, heard, live, nxt, rep, open, mine, out, log, net, sent>>

Reported(p) == { x[1] : x \in rep[p] }
Cand(p) == { m \in mem[p] : m >= lead[p] }
Before(p, q) == { m \in Cand(p) : m < q }
Slot(p, q) == Cardinality(Before(p, q))
First(p) == IF last[p] = 0 THEN Max(Period, DeltaW) ELSE IF lead[p] \notin mem[p] THEN Max(Period, DeltaI) ELSE Period
(* One more in each slot: what is spoken at its very end arrives before the next one begins. *)
Begins(p, slot) == heard[p] + First(p) + slot * (DeltaW + DeltaI + 1 + (IF last[p] = 0 THEN Late ELSE 0))
Alone(p) == mem[p] \ {p} \subseteq Reported(p)
Changed(p, v, joins, leaves) == IF joins = {} /\ leaves = {} THEN mem ELSE [mem EXCEPT ![p] = (@ \cup joins) \ leaves]

(* The first round of a group that starts by message: the starter is the lowest of whom nobody is left before it, and it waits for all. *)
Starts(p) == last[p] = 0 /\ ~live[p] /\ Before(p, p) \subseteq Reported(p)
(* What those reported dead had spoken has arrived. *)
After(p, those, t) == \A x \in rep[p] : x[1] \in those => t + Slack > x[2] + DeltaI
Due(p, t) ==
  \/ Starts(p)
  \/ live[p] /\ t + Slack >= Begins(p, Slot(p, p))
  \/ live[p] /\ Hurry /\ Before(p, p) # {} /\ Before(p, p) \subseteq Reported(p) /\ After(p, Before(p, p), t)
  \/ ~live[p] /\ Alone(p) /\ After(p, mem[p], t)
InTime(p, t) == Starts(p) \/ Alone(p) \/ t <= Begins(p, Slot(p, p)) + Late + Slack

(* Alg. 3, lines 7-13; Alg. 2, lines 11-18. *)
Speak(p, t, r, i, v) ==
  /\ up[p] = "on" /\ p \in Cand(p) /\ mine[p] = <<>> /\ open[p] = {}
  /\ r = last[p] + 1 + Slot(p, p) /\ i = nxt[p] /\ Due(p, t) /\ InTime(p, t)
  /\ net' = net \cup {[f |-> p, r |-> r, i |-> i, v |-> v, at |-> t]}
  /\ mine' = [mine EXCEPT ![p] = <<[r |-> r, i |-> i, v |-> v, left |-> {}]>>]
  /\ last' = [last EXCEPT ![p] = r] /\ lead' = [lead EXCEPT ![p] = p] /\ heard' = [heard EXCEPT ![p] = t] /\ live' = [live EXCEPT ![p] = TRUE]
  /\ nxt' = IF v = Bottom THEN nxt ELSE [nxt EXCEPT ![p] = @ + 1]
  /\ UNCHANGED <<now, up, mem, rep, open, out, log, sent>>

(* RSBCAST, Alg. 1: one copy on every path. *)
Leave(p, k) ==
  /\ mine[p] # <<>> /\ k \notin mine[p][1].left
  /\ sent' = sent \cup {<<p, mine[p][1].r, k>>}
  /\ mine' = [mine EXCEPT ![p][1].left = @ \cup {k}]
  /\ UNCHANGED <<now, up, mem, last, lead, heard, live, nxt, rep, open, out, log, net>>

Settles(p) == mine[p] # <<>> /\ mine[p][1].left = Path
Settle(p, joins, leaves) ==
  /\ Settles(p)
  /\ out' = IF mine[p][1].v = Bottom \/ up[p] # "on" THEN out ELSE [out EXCEPT ![p] = Append(@, <<mine[p][1].i, mine[p][1].v>>)]
  /\ mine' = [mine EXCEPT ![p] = <<>>] /\ mem' = Changed(p, mine[p][1].v, joins, leaves)
  /\ UNCHANGED <<now, up, last, lead, heard, live, nxt, rep, open, log, net, sent>>

Came(q, c) == { o \in open[q] : o.f = c.f /\ o.r = c.r }
(* Of no effect: from before its time, or to one that has stopped. *)
Gone(q, c) == up[q] # "on" \/ c.r <= last[q]
(* A copy with which its receiver need not stop: it was not skipped, nor has it given the sender up, nor does the round take longer than DeltaI. *)
Sound(q, c) ==
  /\ c.f \in Cand(q) /\ ~(q \in Cand(q) /\ q < c.f)
  /\ live[q] => now <= Begins(q, Slot(q, c.f) + 1) + Slack + (IF c.f = lead[q] THEN DeltaI ELSE 0)
  /\ \A o \in Came(q, c) : now <= o.at + DeltaI + Slack
Receive(q, k, c) ==
  /\ <<c.f, c.r, k>> \in sent /\ c.f # q /\ \A o \in Came(q, c) : k \notin o.got
  /\ ~Gone(q, c) /\ Sound(q, c)
  /\ open' = [open EXCEPT ![q] = (@ \ Came(q, c)) \cup
       {[f |-> c.f, r |-> c.r, i |-> c.i, v |-> c.v, got |-> {k} \cup UNION { o.got : o \in Came(q, c) },
         at |-> IF Came(q, c) = {} THEN now ELSE (CHOOSE o \in Came(q, c) : TRUE).at]}]
  /\ UNCHANGED <<now, up, mem, last, lead, heard, live, nxt, rep, mine, out, log, net, sent>>

Ready(q) == { o \in open[q] : o.got = Path /\ o.f \in Cand(q) /\ o.r = last[q] + 1 + Slot(q, o.f) }
Delivers(q) == up[q] = "on" /\ mine[q] = <<>> /\ \E o \in Ready(q) : o.i = nxt[q]
Deliver(q, o, joins, leaves) ==
  /\ Delivers(q) /\ o \in Ready(q) /\ o.i = nxt[q]
  /\ open' = [open EXCEPT ![q] = @ \ {o}]
  /\ last' = [last EXCEPT ![q] = o.r] /\ lead' = [lead EXCEPT ![q] = o.f] /\ heard' = [heard EXCEPT ![q] = now] /\ live' = [live EXCEPT ![q] = TRUE]
  /\ IF o.v = Bottom THEN UNCHANGED <<nxt, out>>
     ELSE nxt' = [nxt EXCEPT ![q] = @ + 1] /\ out' = [out EXCEPT ![q] = Append(@, <<o.i, o.v>>)]
  /\ mem' = Changed(q, o.v, joins, leaves)
  /\ UNCHANGED <<now, up, rep, mine, log, net, sent>>

Decide(p, i, v) ==
  /\ out[p] # <<>> /\ Head(out[p]) = <<i, v>>
  /\ out' = [out EXCEPT ![p] = Tail(@)] /\ log' = [log EXCEPT ![p] = @ \cup {<<i, v>>}]
  /\ UNCHANGED <<now, up, mem, last, lead, heard, live, nxt, rep, open, mine, net, sent>>

Report(p, q) ==
  /\ up[p] = "on" /\ up[q] = "dead" /\ rep' = [rep EXCEPT ![p] = @ \cup {<<q, now>>}]
  /\ UNCHANGED <<now, up, mem, last, lead, heard, live, nxt, open, mine, out, log, net, sent>>

(* `together`: it counts from now on. Else it waits for the first round. *)
Start(p, together, round, leader, next, members) ==
  /\ up[p] = "off" /\ up' = [up EXCEPT ![p] = "on"]
  /\ mem' = [mem EXCEPT ![p] = members] /\ last' = [last EXCEPT ![p] = round] /\ lead' = [lead EXCEPT ![p] = leader]
  /\ heard' = [heard EXCEPT ![p] = now] /\ live' = [live EXCEPT ![p] = together] /\ nxt' = [nxt EXCEPT ![p] = next]
  /\ UNCHANGED <<now, rep, open, mine, out, log, net, sent>>

(* A safe exit: at any time, for whatever reason. *)
Ends(p, how) ==
  /\ up[p] \in {"on", "halted"} /\ up' = [up EXCEPT ![p] = how]
  /\ open' = [open EXCEPT ![p] = {}]
  /\ mine' = [mine EXCEPT ![p] = IF how = "dead" THEN <<>> ELSE @]
  /\ out' = IF how = "dead" THEN [out EXCEPT ![p] = <<>>] ELSE out
  /\ UNCHANGED <<now, mem, last, lead, heard, live, nxt, rep, log, net, sent>>

TypeOK ==
  /\ up \in [Member -> {"off", "on", "halted", "dead"}]
  /\ \A p \in Member : Len(mine[p]) <= 1 /\ nxt[p] >= 1 /\ last[p] >= 0
(* What lowi.rs rests on: for every round number at most one member speaks. *)
OneSpeaker == \A c, d \in net : c.r = d.r => c = d
Decided(p) == log[p] \cup { out[p][n] : n \in 1..Len(out[p]) }
UniformAgreement == \A p, q \in Member : \A x \in Decided(p), y \in Decided(q) : x[1] = y[1] => x = y
Integrity == \A p \in Member : \A x \in log[p] : \A y \in log[p] : x[1] = y[1] => x = y
=============================================================================
