--------------------------------- MODULE OWI ---------------------------------
(* One-way imposition (Nano-consensus, Alg. 2): one instance, discrete time. RSBCAST is here what it promises: to all within DeltaI, or NET-FAULT *)
(* (specs/rsbcast). Numbers of lines are the paper's.                                                                                            *)
EXTENDS Integers, FiniteSets

CONSTANTS
  N, MaxCrash,
  DeltaI, DeltaW, \* interaction latency; window in which all PROPOSE
  Slack,          \* timers run DeltaW + DeltaI + Slack; 0, as printed
  MaxLate,        \* so many copies of RSBCASTs come later than DeltaI, unnoticed (all redundant copies to one receiver)
  Cut,            \* TRUE: a crash may cut an RSBCAST short between two groups: everybody gets NET-FAULT
  Loopback        \* TRUE: a leader DELIVERs its own RSBCAST. FALSE: it is not among its groups' receivers

Member == 1..N
None == 0
Off == -1
Timer == DeltaW + DeltaI + Slack
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

VARIABLES
  alive, quit,
  now,       \* time since the first could start, up to DeltaW
  started,   \* who has called PROPOSE
  left,      \* by member: P of Alg. 2
  proposals, decision, timer, \* by member
  net,       \* RSBCASTs: [f, t, v, age, late]
  sends,     \* line 9 and 17: [t, v], without any promise of time
  lates

vars == <<alive, quit, now, started, left, proposals, decision, timer, net, sends, lates>>

Leader(p) == Min(left[p])
Det(vs) == Min(vs)
Works(p) == p \in alive /\ p \notin quit

TypeOK ==
  /\ alive \subseteq Member /\ quit \subseteq Member /\ now \in 0..DeltaW
  /\ \A p \in Member : proposals[p] \subseteq Member /\ decision[p] \in Member \cup {None} /\ timer[p] \in Off..Timer
  /\ \A c \in net : c.late \/ c.age \in 0..DeltaI

Init ==
  /\ alive = Member /\ quit = {} /\ now = 0 /\ started = {}
  /\ left = [p \in Member |-> Member] /\ proposals = [p \in Member |-> {}]
  /\ decision = [p \in Member |-> None] /\ timer = [p \in Member |-> Off]
  /\ net = {} /\ sends = {} /\ lates = 0

Copies(p, v) == { [f |-> p, t |-> q, v |-> v, age |-> 0, late |-> FALSE] : q \in (IF Loopback THEN alive ELSE alive \ {p}) }
Useful(ms) == { c \in ms : c.t \in alive' /\ c.t \notin quit' /\ decision'[c.t] = None }

(* RSBCAST by p, whole or cut short. *)
Impose(p, v) ==
  \/ /\ UNCHANGED <<alive, quit>> /\ net' = net \cup Copies(p, v)
  \/ /\ Cut /\ Cardinality(Member \ alive) < MaxCrash
     /\ alive' = alive \ {p}
     /\ quit' = quit \cup { q \in alive' : decision[q] = None } /\ net' = {}

(* Lines 4-10. *)
Propose(p) ==
  /\ Works(p) /\ p \notin started
  /\ started' = started \cup {p}
  /\ proposals' = [proposals EXCEPT ![p] = @ \cup {p}]
  /\ IF p = Leader(p)
     THEN Impose(p, Det(proposals'[p])) /\ UNCHANGED <<timer, sends>>
     ELSE /\ sends' = sends \cup {[t |-> Leader(p), v |-> p]}
          /\ timer' = IF decision[p] = None THEN [timer EXCEPT ![p] = Timer] ELSE timer
          /\ UNCHANGED <<alive, quit, net>>
  /\ UNCHANGED <<now, left, decision, lates>>

(* Lines 11-18; line 17's v, which that handler does not have, is the member's own proposal. *)
TimedOut(p) ==
  /\ Works(p) /\ timer[p] = 0 /\ decision[p] = None
  /\ left' = [left EXCEPT ![p] = @ \ {Leader(p)}]
  /\ IF p = Min(left'[p])
     THEN Impose(p, Det(proposals[p])) /\ timer' = [timer EXCEPT ![p] = Off] /\ UNCHANGED sends
     ELSE /\ sends' = sends \cup {[t |-> Min(left'[p]), v |-> p]}
          /\ timer' = [timer EXCEPT ![p] = Timer]
          /\ UNCHANGED <<alive, quit, net>>
  /\ UNCHANGED <<now, started, proposals, decision, lates>>

(* Lines 19-20; what comes after a leader's choice changes nothing. *)
Receive(m) ==
  /\ m \in sends /\ Works(m.t) /\ decision[m.t] = None
  /\ sends' = sends \ {m}
  /\ proposals' = [proposals EXCEPT ![m.t] = @ \cup {m.v}]
  /\ UNCHANGED <<alive, quit, now, started, left, decision, timer, net, lates>>

(* Lines 21-24 (whose `decision = {}` must be line 3's bottom). *)
Deliver(c) ==
  /\ c \in net /\ Works(c.t) /\ decision[c.t] = None
  /\ decision' = [decision EXCEPT ![c.t] = c.v]
  /\ timer' = [timer EXCEPT ![c.t] = Off]
  /\ UNCHANGED <<alive, quit, now, started, left, proposals, sends, lates>>
  /\ net' = Useful(net \ {c})

MakeLate(c) ==
  /\ c \in net /\ ~c.late /\ lates < MaxLate /\ lates' = lates + 1
  /\ net' = (net \ {c}) \cup {[c EXCEPT !.late = TRUE, !.age = 0]}
  /\ UNCHANGED <<alive, quit, now, started, left, proposals, decision, timer, sends>>

Crash(p) ==
  /\ Works(p) /\ Cardinality(Member \ alive) < MaxCrash
  /\ alive' = alive \ {p}
  /\ timer' = [timer EXCEPT ![p] = Off]
  /\ UNCHANGED <<quit, now, started, left, proposals, decision, sends, lates>>
  /\ net' = Useful(net)

Tick ==
  /\ \A c \in net : c.late \/ c.age < DeltaI
  /\ \A p \in Member : Works(p) => timer[p] # 0
  /\ now < DeltaW \/ { p \in alive : Works(p) } \subseteq started
  /\ now < DeltaW \/ (\E p \in Member : Works(p) /\ timer[p] > 0) \/ (\E c \in net : ~c.late)
  /\ now' = IF now < DeltaW THEN now + 1 ELSE now
  /\ net' = { IF c.late THEN c ELSE [c EXCEPT !.age = @ + 1] : c \in net }
  /\ timer' = [p \in Member |-> IF Works(p) /\ timer[p] > 0 THEN timer[p] - 1 ELSE timer[p]]
  /\ UNCHANGED <<alive, quit, started, left, proposals, decision, sends, lates>>

Progress == Tick \/ (\E p \in Member : Propose(p) \/ TimedOut(p)) \/ (\E c \in net : Deliver(c))
Next == Progress \/ (\E m \in sends : Receive(m)) \/ (\E c \in net : MakeLate(c)) \/ (\E p \in Member : Crash(p))
Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* Section 4.2; decisions of the crashed count too. Integrity is how Deliver is written: `decision` changes once. *)
Validity == \A p \in Member : decision[p] # None => decision[p] \in started
Integrity == [][\A p \in Member : decision[p] # None => decision'[p] = decision[p]]_vars
UniformAgreement == \A p, q \in Member : decision[p] # None /\ decision[q] # None => decision[p] = decision[q]
Termination == <>(\A p \in alive : decision[p] # None)
=============================================================================
