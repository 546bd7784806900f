-------------------------------- MODULE HSUC --------------------------------
(* Hierarchical stabilizing uniform consensus (FiDe, Alg. 3, App. A.3) over optimistic stabilizing reliable broadcast (Alg. 2, App. A.2): a      *)
(* sequence of instances. Numbers of lines are the paper's. Constants choose between the text as printed and what it needs to be right; each     *)
(* place is told in docs/papers.md.                                                                                                              *)
(*                                                                                                                                               *)
(* Links are reliable and without order: `net` holds what was sent. What a crashed member had sent may arrive, late too, or never: it stays in   *)
(* `net` and nothing is owed. So a multi-send that a crash cuts short needs no step of its own.                                                  *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  N,          \* members 1..N
  Instances,  \* how many instances are run
  MaxCrash,   \* at most so many members crash
  MaxWrong,   \* so many times the detector reports somebody who is alive (0: it is accurate)
  Fence,      \* TRUE: who is reported alive is stopped before anyone hears of it
  NestedSend, \* TRUE, as printed: lines 10-12 stand within the `if` of line 8. FALSE: a leader sends its proposal whenever it is asked to propose
  ResetAcks,  \* FALSE, as printed: `acks` outlives its instance. TRUE: emptied by line 33 too
  ResetProposer, \* FALSE, as printed: `proposer` outlives its instance. TRUE: bottom again by line 33 too
  LateRelay,  \* what arrives from a member after its CRASH: "none", as printed (taken, never relayed); "relay" (taken and relayed at once);
              \* "ignore" (dropped); "cores", the rule of the implementation: all but decisions is dropped, and a decision is relayed, at once
              \* or at the CRASH, if the member that broadcast it first (its origin) was reported, whoever sent this copy
  IdPerInstance \* identity of an OSRB message: TRUE, the instance; FALSE, instance and broadcaster

Member == 1..N
None == 0
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

VARIABLES
  alive,      \* who has not crashed
  wrong,      \* wrong reports so far
  correct, proposal, proposer, acks, lastid, \* Alg. 3, by member
  retransmit, delivered,                     \* Alg. 2, by member
  inst,       \* the instance a member is in; Instances + 1 when it is through
  net,        \* messages under way
  proposed,   \* ghost: who was asked to propose, in which instance
  decided     \* ghost: who decided, in which instance, what

vars == <<alive, wrong, correct, proposal, proposer, acks, lastid, retransmit, delivered, inst, net, proposed, decided>>

Leader(p) == Min(correct[p])

(* A proposal is its proposer's number: values are distinct, and one a member and instance is enough. *)
Proposal(f, t, i, v) == [k |-> "PROPOSE", f |-> f, t |-> t, i |-> i, v |-> v, b |-> None, o |-> None]
Ack(f, t, i)         == [k |-> "ACK", f |-> f, t |-> t, i |-> i, v |-> None, b |-> None, o |-> None]
(* A decision as its origin broadcasts it. Where no rule asks for the origin, it is left out, so that there are fewer states. *)
Decision(f, t, i, v, b) == [k |-> "DECIDE", f |-> f, t |-> t, i |-> i, v |-> v, b |-> b, o |-> IF LateRelay = "cores" THEN f ELSE None]
Id(m) == <<m.i, m.b>>
NoId == <<0, 0>>

(* Without effect, so not kept: messages to the crashed, of instances that are over, copies of what was delivered.                               *)
Live(m, in, del, al) ==
  /\ m.t \in al
  /\ IF m.k = "DECIDE" THEN Id(m) \notin del[m.t] ELSE m.i >= in[m.t]
Clean(ms, in, del, al) == { m \in ms : Live(m, in, del, al) }

TypeOK ==
  /\ alive \subseteq Member
  /\ wrong \in 0..MaxWrong
  /\ \A p \in Member : /\ correct[p] \subseteq Member
                       /\ proposal[p] \in Member \cup {None}
                       /\ proposer[p] \in Member \cup {None}
                       /\ acks[p] \subseteq Member
                       /\ inst[p] \in 1..(Instances + 1)
  /\ \A m \in net : m.k \in {"PROPOSE", "ACK", "DECIDE"} /\ m.f \in Member /\ m.t \in Member

Init ==
  /\ alive = Member /\ wrong = 0
  /\ correct = [p \in Member |-> Member]
  /\ proposal = [p \in Member |-> None] /\ proposer = [p \in Member |-> None]
  /\ acks = [p \in Member |-> {}] /\ lastid = [p \in Member |-> NoId]
  /\ retransmit = [p \in Member |-> {}] /\ delivered = [p \in Member |-> {}]
  /\ inst = [p \in Member |-> 1] /\ net = {}
  /\ proposed = {} /\ decided = {}

(* Lines 7-12. *)
Propose(p) ==
  /\ p \in alive /\ inst[p] <= Instances
  /\ <<p, inst[p]>> \notin proposed
  /\ proposed' = proposed \cup {<<p, inst[p]>>}
  /\ LET first == proposal[p] = None
         v == IF first THEN p ELSE proposal[p]
     IN /\ proposal' = [proposal EXCEPT ![p] = v]
        /\ net' = IF p = Leader(p) /\ (first \/ ~NestedSend)
                  THEN Clean(net \cup { Proposal(p, q, inst[p], v) : q \in correct[p] }, inst, delivered, alive)
                  ELSE net
  /\ UNCHANGED <<alive, wrong, correct, proposer, acks, lastid, retransmit, delivered, inst, decided>>

Ignored(m) ==
  /\ m.f \notin correct[m.t]
  /\ LateRelay = "ignore" \/ (LateRelay = "cores" /\ m.k # "DECIDE")

Drop(m) ==
  /\ m \in net /\ Ignored(m)
  /\ net' = net \ {m}
  /\ UNCHANGED <<alive, wrong, correct, proposal, proposer, acks, lastid, retransmit, delivered, inst, proposed, decided>>

(* Lines 13-17. *)
ReceiveProposal(m) ==
  LET p == m.t j == m.f IN
  /\ m \in net /\ m.k = "PROPOSE" /\ m.i = inst[p] /\ ~Ignored(m)
  /\ IF proposer[p] = None \/ j >= proposer[p]
     THEN /\ proposal' = [proposal EXCEPT ![p] = m.v]
          /\ proposer' = [proposer EXCEPT ![p] = j]
          /\ net' = Clean((net \ {m}) \cup {Ack(p, j, m.i)}, inst, delivered, alive)
     ELSE /\ net' = net \ {m}
          /\ UNCHANGED <<proposal, proposer>>
  /\ UNCHANGED <<alive, wrong, correct, acks, lastid, retransmit, delivered, inst, proposed, decided>>

(* Lines 18-19. *)
ReceiveAck(m) ==
  /\ m \in net /\ m.k = "ACK" /\ m.i = inst[m.t] /\ ~Ignored(m)
  /\ acks' = [acks EXCEPT ![m.t] = @ \cup {m.f}]
  /\ net' = net \ {m}
  /\ UNCHANGED <<alive, wrong, correct, proposal, proposer, lastid, retransmit, delivered, inst, proposed, decided>>

(* Lines 20-22. *)
Broadcast(p) ==
  /\ p \in alive /\ inst[p] <= Instances /\ correct[p] \subseteq acks[p]
  /\ acks' = [acks EXCEPT ![p] = {}]
  /\ LET b == IF IdPerInstance THEN None ELSE p
     IN net' = Clean(net \cup { Decision(p, q, inst[p], proposal[p], b) : q \in correct[p] }, inst, delivered, alive)
  /\ UNCHANGED <<alive, wrong, correct, proposal, proposer, lastid, retransmit, delivered, inst, proposed, decided>>

(* Alg. 2, lines 7-11, with Alg. 3, lines 30-33 as its DELIVER. A decision of an instance that is over is taken by the broadcast below, and      *)
(* ignored by the consensus above ("it ignores messages from all the consensus instances for which it has already decided").                     *)
ReceiveDecision(m) ==
  LET p == m.t
      mine == m.i = inst[p]
      rest == IF mine /\ lastid[p] # NoId THEN { x \in retransmit[p] : Id(x) # lastid[p] } ELSE retransmit[p]
      in == IF mine THEN [inst EXCEPT ![p] = @ + 1] ELSE inst
      del == [delivered EXCEPT ![p] = @ \cup {Id(m)}]
      relay == IF (LateRelay = "relay" /\ m.f \notin correct[p]) \/ (LateRelay = "cores" /\ m.o \notin correct[p])
               THEN { [m EXCEPT !.f = p, !.t = q] : q \in correct[p] } ELSE {}
  IN
  /\ m \in net /\ m.k = "DECIDE" /\ m.i <= inst[p] /\ ~Ignored(m)
  /\ retransmit' = [retransmit EXCEPT ![p] = rest \cup {[m EXCEPT !.f = None, !.t = None]}]
  /\ delivered' = del
  /\ inst' = in
  /\ IF mine
     THEN /\ lastid' = [lastid EXCEPT ![p] = Id(m)]
          /\ proposal' = [proposal EXCEPT ![p] = None]
          /\ acks' = IF ResetAcks THEN [acks EXCEPT ![p] = {}] ELSE acks
          /\ proposer' = IF ResetProposer THEN [proposer EXCEPT ![p] = None] ELSE proposer
          /\ decided' = decided \cup {<<p, m.i, m.v>>}
     ELSE UNCHANGED <<lastid, proposal, acks, proposer, decided>>
  /\ net' = Clean((net \ {m}) \cup relay, in, del, alive)
  /\ UNCHANGED <<alive, wrong, correct, proposed>>

Receive(m) == ReceiveProposal(m) \/ ReceiveAck(m) \/ ReceiveDecision(m) \/ Drop(m)

(* Alg. 2, lines 12-16, then Alg. 3, lines 23-29. *)
CrashReport(p, j) ==
  /\ p \in alive /\ j \in correct[p] /\ j # p
  /\ LET c == correct[p] \ {j}
         again == { x \in retransmit[p] : LateRelay = "cores" => x.o = j }
         old == { [x EXCEPT !.f = p, !.t = q] : x \in again, q \in c }
         new == IF j = Leader(p) /\ p = Min(c) /\ proposal[p] # None
                THEN { Proposal(p, q, inst[p], proposal[p]) : q \in c } ELSE {}
     IN /\ correct' = [correct EXCEPT ![p] = c]
        /\ net' = Clean(net \cup old \cup new, inst, delivered, alive)
  /\ UNCHANGED <<alive, proposal, proposer, acks, lastid, retransmit, delivered, inst, proposed, decided>>

Detect(p, j) == j \notin alive /\ CrashReport(p, j) /\ UNCHANGED wrong
Mistake(p, j) == ~Fence /\ wrong < MaxWrong /\ j \in alive /\ CrashReport(p, j) /\ wrong' = wrong + 1

(* What a crashed member knew is of no use to anyone: forgotten, so that there are fewer states. *)
Stop(p) ==
  /\ p \in alive
  /\ alive' = alive \ {p}
  /\ net' = Clean(net, inst, delivered, alive')
  /\ correct' = [correct EXCEPT ![p] = {}]
  /\ proposal' = [proposal EXCEPT ![p] = None] /\ proposer' = [proposer EXCEPT ![p] = None]
  /\ acks' = [acks EXCEPT ![p] = {}] /\ lastid' = [lastid EXCEPT ![p] = NoId]
  /\ retransmit' = [retransmit EXCEPT ![p] = {}] /\ delivered' = [delivered EXCEPT ![p] = {}]
  /\ inst' = [inst EXCEPT ![p] = 1]
  /\ UNCHANGED <<proposed, decided>>

Crash(p) == Cardinality(Member \ alive) < MaxCrash /\ Stop(p) /\ UNCHANGED wrong
(* A wrong suspicion under a fence: the suspect stops, and only then is it reported (by Detect). *)
FenceOff(j) == Fence /\ wrong < MaxWrong /\ Stop(j) /\ wrong' = wrong + 1

(* What must happen: messages between members that are alive, reports of crashes, proposals, broadcasts. *)
Progress ==
  \/ \E p \in Member : Propose(p) \/ Broadcast(p)
  \/ \E m \in net : m.f \in alive /\ Receive(m)
  \/ \E p, j \in Member : Detect(p, j)

Next ==
  \/ Progress
  \/ \E m \in net : Receive(m)
  \/ \E p, j \in Member : Mistake(p, j)
  \/ \E p \in Member : Crash(p) \/ FenceOff(p)

Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

(* App. A.1. *)
Validity == \A d \in decided : <<d[3], d[2]>> \in proposed
Integrity == \A d, e \in decided : d[1] = e[1] /\ d[2] = e[2] => d = e
UniformAgreement == \A d, e \in decided : d[2] = e[2] => d[3] = e[3]
Termination == <>(\A p \in alive : inst[p] = Instances + 1)

(* App. A.2: whoever has let go of a message lives among members that have all received it. *)
Stability ==
  \A p \in alive : \A id \in delivered[p] :
    (\A x \in retransmit[p] : Id(x) # id) => \A q \in alive : id \in delivered[q]
(* Section 4.1: "limiting the number of messages to be relayed to 2". *)
RetransmissionBound == \A p \in alive : Cardinality(retransmit[p]) <= 2
=============================================================================
