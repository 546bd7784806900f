-------------------------------- MODULE OSRB --------------------------------
(* Optimistic stabilizing reliable broadcast (FiDe, Alg. 2, App. A.2) alone: every member broadcasts one message. Numbers of lines are the       *)
(* paper's. Links as in HSUC: what a crashed member had sent arrives, late too, or never.                                                        *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  N, MaxCrash,
  LateRelay, \* what arrives from a member after its CRASH: "none", as printed (taken, never relayed); "relay"; "ignore"
  Stabilize  \* "never"; "stable" (once every member alive has received it: the duty of the caller); "early" (whenever one likes)

Member == 1..N

VARIABLES
  alive,
  correct, retransmit, delivered, \* Alg. 2, by member; a message is named by its broadcaster
  net,
  broadcast \* ghost: what was broadcast

vars == <<alive, correct, retransmit, delivered, net, broadcast>>

Send(f, to, ms) == { [f |-> f, t |-> q, m |-> m] : q \in to, m \in ms }
(* Copies of what was delivered have no effect, and what goes to the crashed neither: not kept. *)
Clean(ms) == { x \in ms : x.t \in alive' /\ x.m \notin delivered'[x.t] }

TypeOK ==
  /\ alive \subseteq Member /\ broadcast \subseteq Member
  /\ \A p \in Member : correct[p] \subseteq Member /\ retransmit[p] \subseteq delivered[p] /\ delivered[p] \subseteq Member
  /\ \A x \in net : x.f \in Member /\ x.t \in Member /\ x.m \in Member

Init ==
  /\ alive = Member /\ net = {} /\ broadcast = {}
  /\ correct = [p \in Member |-> Member]
  /\ retransmit = [p \in Member |-> {}] /\ delivered = [p \in Member |-> {}]

(* Lines 4-6. *)
Broadcast(p) ==
  /\ p \in alive /\ p \notin broadcast
  /\ broadcast' = broadcast \cup {p}
  /\ UNCHANGED <<alive, correct, retransmit, delivered>>
  /\ net' = Clean(net \cup Send(p, correct[p], {p}))

(* Lines 7-11. *)
Receive(x) ==
  LET p == x.t
      dead == x.f \notin correct[p]
  IN
  /\ x \in net
  /\ IF dead /\ LateRelay = "ignore"
     THEN UNCHANGED <<retransmit, delivered>>
     ELSE /\ retransmit' = [retransmit EXCEPT ![p] = @ \cup {x.m}]
          /\ delivered' = [delivered EXCEPT ![p] = @ \cup {x.m}]
  /\ UNCHANGED <<alive, correct, broadcast>>
  /\ net' = Clean((net \ {x}) \cup IF dead /\ LateRelay = "relay" THEN Send(p, correct[p], {x.m}) ELSE {})

(* Lines 12-16. *)
Detect(p, j) ==
  /\ p \in alive /\ j \in correct[p] \ alive
  /\ correct' = [correct EXCEPT ![p] = @ \ {j}]
  /\ UNCHANGED <<alive, retransmit, delivered, broadcast>>
  /\ net' = Clean(net \cup Send(p, correct'[p], retransmit[p]))

(* Lines 17-19. *)
LetGo(p, m) ==
  /\ p \in alive /\ m \in retransmit[p]
  /\ \/ Stabilize = "early"
     \/ Stabilize = "stable" /\ \A q \in alive : m \in delivered[q]
  /\ retransmit' = [retransmit EXCEPT ![p] = @ \ {m}]
  /\ UNCHANGED <<alive, correct, delivered, net, broadcast>>

Crash(p) ==
  /\ p \in alive /\ Cardinality(Member \ alive) < MaxCrash
  /\ alive' = alive \ {p}
  /\ correct' = [correct EXCEPT ![p] = {}] /\ retransmit' = [retransmit EXCEPT ![p] = {}]
  /\ delivered' = [delivered EXCEPT ![p] = {}]
  /\ UNCHANGED broadcast
  /\ net' = Clean(net)

Progress ==
  \/ \E p \in Member : Broadcast(p)
  \/ \E x \in net : x.f \in alive /\ Receive(x)
  \/ \E p, j \in Member : Detect(p, j)

Next ==
  \/ Progress
  \/ \E x \in net : Receive(x)
  \/ \E p, m \in Member : LetGo(p, m)
  \/ \E p \in Member : Crash(p)

Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* App. A.2. *)
NoCreation == \A p \in Member : delivered[p] \subseteq broadcast
(* A message is delivered when it is received and not in `delivered`, out of which nothing is ever taken (except with its member). *)
NoDuplication == [][\A p \in alive' : delivered[p] \subseteq delivered'[p]]_vars
(* Liveness, said of rest: when nothing is left that must happen, it has happened. The next one says it with time. *)
AtRest == ~ENABLED Progress
Validity == AtRest => \A p \in alive : p \in broadcast => p \in delivered[p]
Agreement == AtRest => \A p, q \in alive : delivered[p] = delivered[q]
Termination == <>(\A p, q \in alive : delivered[p] = delivered[q] /\ alive \subseteq delivered[p])
Stability == \A p \in alive : \A m \in delivered[p] \ retransmit[p] : \A q \in alive : m \in delivered[q]
=============================================================================
