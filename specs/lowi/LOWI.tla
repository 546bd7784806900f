-------------------------------- MODULE LOWI --------------------------------
(* Looped one-way imposition (Nano-consensus, Alg. 3) over OWI (Alg. 2): a sequence of instances with heartbeats in between, discrete time.      *)
(* Numbers of lines are those of Alg. 3. RSBCAST delivers to all within DeltaI, the sender among them. What followers SEND to their leader has   *)
(* no promise of time and is left out: it is as if it always came too late.                                                                      *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  N, MaxCrash, Instances,
  DeltaI, DeltaW, \* interaction latency; by how much the first LOOPs may be apart, and what timers allow for
  Period,         \* from a DECIDE to the next LOOP
  Slack,          \* timers run DeltaW + DeltaI + Slack
  MaxLate,        \* so many RSBCASTs come to one receiver later than DeltaI, unnoticed
  Early,          \* what DELIVERs before the LOOP that begins its instance: "buffer"; "drop" (OWI's `decision` is still that of the instance
                  \* before); "overwrite" (lines 14-19 to the letter: decisions[cins], and cins is still the one before);
                  \* "decide": it is decided when it comes, as the core does
  Eager,          \* TRUE: a leader that has DECIDEd before begins its next LOOP at once when something is pending, as groups on the wire have it
  KeepPending,    \* FALSE, as printed: line 11 takes v out of `pending` when it is proposed. TRUE: when it is decided
  LogHeartbeats   \* FALSE, as printed: line 15 keeps a heartbeat value out of the log. TRUE: without that line

Member == 1..N
Bottom == 0      \* the heartbeat value
Request == 1..(2 * N) \* member p's own are p and p + N; the first leader may have any of its own
None == -1
Off == -1
Timer == DeltaW + DeltaI + Slack
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

VARIABLES
  alive,
  pending, decisions, cins, lins, \* Alg. 3, by member
  left, proposal, timer,          \* Alg. 2, by member, for its instance: P, what it proposed, the timer
  loop,                           \* by member: time until its next LOOP
  early,                          \* by member: what was buffered, [i, v], or <<>>
  net,                            \* RSBCASTs: [f, t, i, v, age, late]
  lates,
  asked                           \* ghost: what was REQUESTed, of anybody

vars == <<alive, pending, decisions, cins, lins, left, proposal, timer, loop, early, net, lates, asked>>

Leader(p) == Min(left[p])
Done(p) == lins[p] = Instances

TypeOK ==
  /\ alive \subseteq Member
  /\ \A p \in Member : /\ pending[p] \subseteq Request /\ lins[p] \in 0..Instances /\ cins[p] \in lins[p]..(lins[p] + 1)
                       /\ Len(decisions[p]) = lins[p] /\ timer[p] \in Off..Timer

Init ==
  /\ alive = Member
  /\ pending \in { [p \in Member |-> IF p = 1 THEN first ELSE {p}] : first \in SUBSET {1, 1 + N} }
  /\ decisions = [p \in Member |-> <<>>] /\ cins = [p \in Member |-> 0] /\ lins = [p \in Member |-> 0]
  /\ left = [p \in Member |-> Member] /\ proposal = [p \in Member |-> None] /\ timer = [p \in Member |-> Off]
  /\ loop \in { f \in [Member -> 0..DeltaW] : \E p \in Member : f[p] = 0 }
  /\ early = [p \in Member |-> <<>>] /\ net = {} /\ lates = 0
  /\ asked = UNION { pending[p] : p \in Member }

(* An instance is named by its number and by how often it was run, which nobody counts: a heartbeat is of instance i as any other.               *)
Copies(p, i, v) == { [f |-> p, t |-> q, i |-> i, v |-> v, age |-> 0, late |-> FALSE] : q \in alive }

(* DECIDE, lines 14-19. *)
Decide(p, i, v) ==
  /\ timer' = [timer EXCEPT ![p] = Off]
  /\ loop' = [loop EXCEPT ![p] = Period]
  /\ proposal' = [proposal EXCEPT ![p] = None]
  /\ IF v = Bottom /\ ~LogHeartbeats
     THEN /\ cins' = [cins EXCEPT ![p] = lins[p]]
          /\ UNCHANGED <<lins, decisions, pending>>
     ELSE /\ decisions' = [decisions EXCEPT ![p] = Append(@, v)]
          /\ lins' = [lins EXCEPT ![p] = i]
          /\ cins' = [cins EXCEPT ![p] = i]
          /\ pending' = IF KeepPending THEN [pending EXCEPT ![p] = @ \ {v}] ELSE pending

(* Who spoke last need not wait: the others count from its last RSBCAST. *)
MayBegin(p) == loop[p] = 0 \/ (Eager /\ loop[p] > 0 /\ lins[p] > 0 /\ p = Leader(p) /\ pending[p] # {})

(* Lines 7-13, and PROPOSE of Alg. 2. *)
Loop(p) ==
  /\ p \in alive /\ MayBegin(p) /\ cins[p] = lins[p] /\ ~Done(p)
  /\ \E v \in IF pending[p] = {} THEN {Bottom} ELSE {Min(pending[p])} :
       IF early[p] # <<>> /\ early[p][1].i = lins[p] + 1
       THEN (* It was decided before it began here. *)
            /\ early' = [early EXCEPT ![p] = <<>>]
            /\ Decide(p, lins[p] + 1, early[p][1].v)
            /\ UNCHANGED net
       ELSE /\ cins' = [cins EXCEPT ![p] = lins[p] + 1]
            /\ proposal' = [proposal EXCEPT ![p] = v]
            /\ pending' = IF KeepPending THEN pending ELSE [pending EXCEPT ![p] = @ \ {v}]
            /\ loop' = [loop EXCEPT ![p] = Off]
            /\ IF p = Leader(p)
               THEN net' = net \cup Copies(p, lins[p] + 1, v) /\ UNCHANGED timer
               ELSE timer' = [timer EXCEPT ![p] = Timer] /\ UNCHANGED net
            /\ UNCHANGED <<lins, decisions, early>>
  /\ UNCHANGED <<alive, left, lates, asked>>

(* Alg. 2, lines 11-18. *)
TimedOut(p) ==
  /\ p \in alive /\ timer[p] = 0
  /\ left' = [left EXCEPT ![p] = @ \ {Leader(p)}]
  /\ IF p = Min(left'[p])
     THEN timer' = [timer EXCEPT ![p] = Off] /\ net' = net \cup Copies(p, cins[p], proposal[p])
     ELSE timer' = [timer EXCEPT ![p] = Timer] /\ UNCHANGED net
  /\ UNCHANGED <<alive, pending, decisions, cins, lins, proposal, loop, early, lates, asked>>

(* A network keeps the order of one sender's packets, except of those that are late. *)
First(c) == \A d \in net : d.f = c.f /\ d.t = c.t /\ ~d.late /\ ~c.late => d.i > c.i \/ (d.i = c.i /\ d.age <= c.age)

Deliver(c) ==
  LET p == c.t IN
  /\ c \in net /\ p \in alive /\ First(c)
  /\ net' = net \ {c}
  /\ IF cins[p] > lins[p] /\ c.i = cins[p]
     THEN Decide(p, c.i, c.v) /\ UNCHANGED early
     ELSE IF cins[p] = lins[p] /\ c.i = lins[p] + 1 /\ ~Done(p) /\ Early = "decide"
     THEN Decide(p, c.i, c.v) /\ UNCHANGED early
     ELSE IF cins[p] = lins[p] /\ c.i = lins[p] + 1 /\ ~Done(p)
     THEN CASE Early = "buffer" -> /\ early' = [early EXCEPT ![p] = <<[i |-> c.i, v |-> c.v]>>]
                                   /\ UNCHANGED <<timer, loop, proposal, cins, lins, decisions, pending>>
            [] Early = "drop" -> UNCHANGED <<timer, loop, proposal, cins, lins, decisions, pending, early>>
            [] Early = "overwrite" -> /\ decisions' = IF c.v = Bottom \/ cins[p] = 0 THEN decisions ELSE [decisions EXCEPT ![p][cins[p]] = c.v]
                                      /\ UNCHANGED <<timer, loop, proposal, cins, lins, pending, early>>
     ELSE UNCHANGED <<timer, loop, proposal, cins, lins, decisions, pending, early>>
  /\ UNCHANGED <<alive, left, lates, asked>>

MakeLate(c) ==
  /\ c \in net /\ ~c.late /\ lates < MaxLate /\ lates' = lates + 1
  /\ net' = (net \ {c}) \cup {[c EXCEPT !.late = TRUE, !.age = 0]}
  /\ UNCHANGED <<alive, pending, decisions, cins, lins, left, proposal, timer, loop, early, asked>>

Crash(p) ==
  /\ p \in alive /\ Cardinality(Member \ alive) < MaxCrash
  /\ alive' = alive \ {p}
  /\ net' = { c \in net : c.t # p }
  /\ timer' = [timer EXCEPT ![p] = Off] /\ loop' = [loop EXCEPT ![p] = Off]
  /\ UNCHANGED <<pending, decisions, cins, lins, left, proposal, early, lates, asked>>

Tick ==
  /\ \A c \in net : c.late \/ c.age < DeltaI
  /\ \A p \in alive : timer[p] # 0 /\ (loop[p] = 0 => Done(p))
  /\ \E p \in alive : ~Done(p)
  /\ net' = { IF c.late THEN c ELSE [c EXCEPT !.age = @ + 1] : c \in net }
  /\ timer' = [p \in Member |-> IF timer[p] > 0 THEN timer[p] - 1 ELSE timer[p]]
  /\ loop' = [p \in Member |-> IF loop[p] > 0 THEN loop[p] - 1 ELSE loop[p]]
  /\ UNCHANGED <<alive, pending, decisions, cins, lins, left, proposal, early, lates, asked>>

Progress == Tick \/ (\E p \in Member : Loop(p) \/ TimedOut(p)) \/ (\E c \in net : Deliver(c))
Next == Progress \/ (\E c \in net : MakeLate(c)) \/ (\E p \in Member : Crash(p))
Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* Section 4.2. *)
Log(p, i) == decisions[p][i]
Validity == \A p \in Member : \A i \in 1..Len(decisions[p]) : Log(p, i) \in asked
(* Nobody DECIDEs an instance twice: a log only grows. *)
Integrity == [][\A p \in Member : Len(decisions[p]) <= Len(decisions'[p]) /\ \A i \in 1..Len(decisions[p]) : decisions'[p][i] = decisions[p][i]]_vars
UniformAgreement == \A p, q \in Member : \A i \in 1..Len(decisions[p]) : i <= Len(decisions[q]) => Log(p, i) = Log(q, i)
NoDuplication == \A p \in Member : \A i, j \in 1..Len(decisions[p]) : i # j => Log(p, i) # Log(p, j)
(* "All DECIDE in the same round", so nobody is ever more than one instance ahead of anybody alive. *)
SameRound == \A p, q \in alive : lins[p] <= lins[q] + 1
(* If the first leader has something to propose: else heartbeats may go on for ever. *)
Termination == pending[1] # {} => <>(\A p \in alive : Done(p))
(* A request is waiting, being proposed, or decided. *)
NoLostRequest == \A p \in alive \ {1} :
  p \in pending[p] \/ proposal[p] = p \/ \E i \in 1..Len(decisions[p]) : Log(p, i) = p
=============================================================================
