--------------------------------- MODULE HUC ---------------------------------
(* Heartbeat uniform consensus (FiDe, Alg. 1 and 4, App. A.4) over fail-consistent uniform reliable broadcast (FCURB), which is here what it     *)
(* promises; specs/fcurb says when heartbeats keep that promise. A sequence of instances. Numbers of lines are those of Alg. 4.                  *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  N, Instances, MaxCrash,
  FailConsistent, \* FALSE: a message of q may be delivered after the report of q's crash
  Uniform,        \* FALSE: a heartbeat of a member that then crashes may reach only some
  EarlySelf,      \* TRUE: a leader delivers its own broadcast before the heartbeat with it has left
  ResetProposals, \* FALSE, as printed: `proposals` outlives its instance
  ForgetCrashed,  \* TRUE, as printed: line 17. FALSE: DET may choose the proposal of a member that crashed
  MaxWrong        \* so many times the detector reports somebody who is alive

Member == 1..N
None == <<0, 0>>
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

VARIABLES
  alive, wrong,
  correct, proposals, acks, \* Alg. 4, by member
  inst,                     \* the instance a member is in
  net,                      \* reliable links
  pend,                     \* FCURB: what rides on a member's next heartbeat
  hb,                       \* FCURB: heartbeats under way
  late,                     \* ghost: somebody delivered a message after the report of its sender's crash
  proposed, decided         \* ghost

vars == <<alive, wrong, correct, proposals, acks, inst, net, pend, hb, late, proposed, decided>>

Leader(p) == Min(correct[p])
(* The proposal of member p in instance i is <<p, i>>. DET: of the lowest member whose proposal is there; nothing, of nothing. *)
Det(ps) == IF ps = [j \in Member |-> None] THEN None ELSE ps[Min({ j \in Member : ps[j] # None })]

Live(m) == m.t \in alive' /\ m.i >= inst'[m.t]
Clean(ms) == { m \in ms : Live(m) }
Blank == [j \in Member |-> None]

TypeOK ==
  /\ alive \subseteq Member /\ wrong \in 0..MaxWrong
  /\ \A p \in Member : /\ correct[p] \subseteq Member /\ acks[p] \subseteq Member
                       /\ inst[p] \in 1..(Instances + 1)
                       /\ \A j \in Member : proposals[p][j] = None \/ proposals[p][j] \in Member \X (1..Instances)

Init ==
  /\ alive = Member /\ wrong = 0 /\ correct = [p \in Member |-> Member]
  /\ proposals = [p \in Member |-> Blank] /\ acks = [p \in Member |-> {}]
  /\ inst = [p \in Member |-> 1] /\ net = {} /\ hb = {} /\ pend = [p \in Member |-> {}]
  /\ late = FALSE /\ proposed = {} /\ decided = {}

(* Lines 5-7. *)
Propose(p) ==
  LET v == <<p, inst[p]>> IN
  /\ p \in alive /\ inst[p] <= Instances /\ v \notin proposed
  /\ proposed' = proposed \cup {v}
  /\ proposals' = [proposals EXCEPT ![p][p] = v]
  /\ UNCHANGED <<alive, wrong, correct, acks, inst, pend, hb, late, decided>>
  /\ net' = Clean(net \cup {[f |-> p, t |-> Leader(p), i |-> inst[p], v |-> v]})

(* Lines 8-10. *)
Receive(m) ==
  /\ m \in net /\ m.i = inst[m.t]
  /\ proposals' = [proposals EXCEPT ![m.t][m.f] = m.v]
  /\ acks' = [acks EXCEPT ![m.t] = @ \cup {m.f}]
  /\ net' = net \ {m}
  /\ UNCHANGED <<alive, wrong, correct, inst, pend, hb, late, proposed, decided>>

(* Lines 22-23, and on to the next instance; of an instance that is over: ignored. *)
Deliver(p, f, i, v) ==
  /\ late' = (late \/ f \notin correct[p])
  /\ IF i = inst[p]
     THEN /\ inst' = [inst EXCEPT ![p] = @ + 1]
          /\ decided' = decided \cup {<<p, i, v>>}
          /\ proposals' = IF ResetProposals THEN [proposals EXCEPT ![p] = Blank] ELSE proposals
     ELSE UNCHANGED <<inst, decided, proposals>>

(* Lines 11-14. *)
Broadcast(p) ==
  LET v == Det(proposals[p]) IN
  /\ p \in alive /\ inst[p] <= Instances /\ correct[p] \subseteq acks[p]
  /\ acks' = [acks EXCEPT ![p] = {}]
  /\ pend' = [pend EXCEPT ![p] = @ \cup {[i |-> inst[p], v |-> v]}]
  /\ IF EarlySelf THEN Deliver(p, p, inst[p], v) ELSE UNCHANGED <<inst, decided, proposals, late>>
  /\ UNCHANGED <<alive, wrong, correct, hb, proposed>>
  /\ net' = Clean(net)

(* FCURB: the next heartbeat leaves with what is to ride on it; to all or, without uniformity, to some. *)
Heartbeat(p) ==
  /\ p \in alive /\ pend[p] # {}
  /\ pend' = [pend EXCEPT ![p] = {}]
  /\ \E to \in IF Uniform THEN {alive} ELSE { s \in SUBSET alive : p \in s } :
       hb' = hb \cup { [f |-> p, t |-> q, i |-> m.i, v |-> m.v] : q \in (IF EarlySelf THEN to \ {p} ELSE to), m \in pend[p] }
  /\ UNCHANGED <<alive, wrong, correct, proposals, acks, inst, net, late, proposed, decided>>

ReceiveHeartbeat(h) ==
  /\ h \in hb /\ h.i <= inst[h.t]
  /\ hb' = hb \ {h}
  /\ Deliver(h.t, h.f, h.i, h.v)
  /\ UNCHANGED <<alive, wrong, correct, acks, pend, proposed>>
  /\ net' = Clean(net)

(* Lines 15-21. *)
CrashReport(p, j) ==
  LET c == correct[p] \ {j}
      ps == IF ForgetCrashed THEN [proposals[p] EXCEPT ![j] = None] ELSE proposals[p]
  IN
  /\ p \in alive /\ j \in correct[p] /\ j # p
  /\ FailConsistent => \A h \in hb : ~(h.f = j /\ h.t = p)
  /\ correct' = [correct EXCEPT ![p] = c]
  /\ proposals' = [proposals EXCEPT ![p] = ps]
  /\ UNCHANGED <<alive, acks, inst, pend, hb, late, proposed, decided>>
  /\ net' = Clean(net \cup IF j = Leader(p) /\ ps[p] # None
                           THEN {[f |-> p, t |-> Min(c), i |-> inst[p], v |-> ps[p]]} ELSE {})

Detect(p, j) == j \notin alive /\ CrashReport(p, j) /\ UNCHANGED wrong
Mistake(p, j) == wrong < MaxWrong /\ j \in alive /\ CrashReport(p, j) /\ wrong' = wrong + 1

Crash(p) ==
  /\ p \in alive /\ Cardinality(Member \ alive) < MaxCrash
  /\ alive' = alive \ {p}
  /\ correct' = [correct EXCEPT ![p] = {}] /\ proposals' = [proposals EXCEPT ![p] = Blank]
  /\ acks' = [acks EXCEPT ![p] = {}] /\ pend' = [pend EXCEPT ![p] = {}] /\ inst' = [inst EXCEPT ![p] = 1]
  /\ hb' = { h \in hb : h.t # p }
  /\ UNCHANGED <<wrong, late, proposed, decided>>
  /\ net' = Clean(net)

(* Heartbeats that have left arrive, whoever has crashed since (uniformity). *)
Progress ==
  \/ \E p \in Member : Propose(p) \/ Broadcast(p) \/ Heartbeat(p)
  \/ \E m \in net : m.f \in alive /\ Receive(m)
  \/ \E h \in hb : ReceiveHeartbeat(h)
  \/ \E p, j \in Member : Detect(p, j)

Next ==
  \/ Progress
  \/ \E m \in net : Receive(m)
  \/ \E p, j \in Member : Mistake(p, j)
  \/ \E p \in Member : Crash(p)

Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* App. A.1, by instance; App. A.4. *)
Validity == \A d \in decided : d[3] \in proposed /\ d[3][2] = d[2]
Integrity == \A d, e \in decided : d[1] = e[1] /\ d[2] = e[2] => d = e
UniformAgreement == \A d, e \in decided : d[2] = e[2] => d[3] = e[3]
FailConsistency == ~late
Termination == <>(\A p \in alive : inst[p] = Instances + 1)
(* One line of the proof: "only one successful BROADCAST ever happens". *)
OneBroadcast == \A g, h \in hb : g.i = h.i => g.f = h.f /\ g.v = h.v
=============================================================================
