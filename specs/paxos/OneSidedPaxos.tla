---------------------------- MODULE OneSidedPaxos ----------------------------
(* One-sided Paxos (uKharon, Alg. 5, App. A.5): proposers that do all by compare-and-swap on the acceptors' words, from predicted states. One    *)
(* slot. Numbers of lines are the paper's. An operation is carried out at its acceptor some time after it was issued, those of one proposer on   *)
(* one acceptor in order, or never (a crashed acceptor, and a crashed proposer too, are ones that take no more steps). A proposer goes on when   *)
(* any majority of the operations of its phase has been answered; answers of the others it has not seen.                                         *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  Proposers,    \* 1..Proposers, each proposing its own number
  Acceptors,    \* 1..Acceptors
  Highest,      \* proposals go no further
  FailedCounts, \* TRUE: an accept whose CAS failed counts as answered, as one may read Alg. 4, lines 20-24 and 45-48
  Predict,      \* TRUE, as printed: lines 23 and 38 take what is still on its way as done. FALSE: predictions are only what was read
  AdoptAny,     \* FALSE, as printed: line 27 adopts the value with the highest accepted_proposal. TRUE: any accepted value
  AdoptBottom,  \* FALSE, as printed: line 27 adopts "if any" was accepted. TRUE: also if none was, which is to adopt bottom
  GoesOn        \* FALSE, as printed: line 26 aborts if a CAS failed. TRUE: without that line

Proposer == 1..Proposers
Acceptor == 1..Acceptors
None == 0
Empty == [mp |-> 0, ap |-> 0, av |-> None]
Majority(S) == 2 * Cardinality(S) > Acceptors

VARIABLES
  word,      \* acceptors' memory
  predicted, proposal, value, \* lines 5-7, by proposer
  phase,     \* by proposer: "idle", "prepare", "accept", "done"
  expect,    \* by proposer and acceptor: what the operation of this phase expects, and
  moveTo,    \* what it would write
  ops,       \* by proposer and acceptor: operations not carried out yet, in order
  answers,   \* by proposer: acceptor -> what the CAS of this phase read, for those carried out
  inputs,    \* ghost: what propose() was called with, by anybody
  decided    \* ghost: <<proposer, proposal, value>>

vars == <<word, predicted, proposal, value, phase, expect, moveTo, ops, answers, inputs, decided>>

TypeOK ==
  /\ \A a \in Acceptor : word[a].mp \in 0..Highest /\ word[a].ap <= word[a].mp /\ word[a].av \in Proposer \cup {None}
  /\ \A p \in Proposer : /\ proposal[p] \in 1..Highest
                         /\ phase[p] \in {"idle", "prepare", "accept", "done"}
                         /\ DOMAIN answers[p] \subseteq Acceptor

Init ==
  /\ word = [a \in Acceptor |-> Empty]
  /\ predicted = [p \in Proposer |-> [a \in Acceptor |-> Empty]]
  /\ proposal = [p \in Proposer |-> p] /\ value = [p \in Proposer |-> None]
  /\ phase = [p \in Proposer |-> "idle"]
  /\ expect = [p \in Proposer |-> [a \in Acceptor |-> Empty]] /\ moveTo = [p \in Proposer |-> [a \in Acceptor |-> Empty]]
  /\ ops = [p \in Proposer |-> [a \in Acceptor |-> <<>>]]
  /\ answers = [p \in Proposer |-> <<>>]
  /\ inputs = {} /\ decided = {}

(* An operation remembers its phase, so that a late answer of an earlier one is not taken for this one's. *)
Issue(p, to, ph) ==
  /\ expect' = [expect EXCEPT ![p] = predicted[p]]
  /\ moveTo' = [moveTo EXCEPT ![p] = to]
  /\ ops' = [ops EXCEPT ![p] = [a \in Acceptor |-> Append(@[a], [e |-> predicted[p][a], n |-> to[a]])]]
  /\ answers' = [answers EXCEPT ![p] = <<>>]
  /\ phase' = [phase EXCEPT ![p] = ph]

(* Lines 9-10, 14-19. *)
RECURSIVE Raise(_, _)
Raise(n, p) == IF \E a \in Acceptor : predicted[p][a].mp >= n THEN Raise(n + Proposers, p) ELSE n
Prepare(p) ==
  LET n == Raise(proposal[p], p) IN
  /\ phase[p] = "idle" /\ n <= Highest
  /\ proposal' = [proposal EXCEPT ![p] = n]
  /\ value' = [value EXCEPT ![p] = p]
  /\ inputs' = inputs \cup {p}
  /\ Issue(p, [a \in Acceptor |-> [predicted[p][a] EXCEPT !.mp = n]], "prepare")
  /\ UNCHANGED <<word, predicted, decided>>

(* Only the newest operation of a proposer on an acceptor can be one of its current phase. *)
Carry(p, a) ==
  LET op == Head(ops[p][a]) IN
  /\ ops[p][a] # <<>>
  /\ ops' = [ops EXCEPT ![p][a] = Tail(@)]
  /\ word' = IF word[a] = op.e THEN [word EXCEPT ![a] = op.n] ELSE word
  /\ answers' = IF Len(ops[p][a]) = 1 /\ phase[p] \in {"prepare", "accept"}
                THEN [answers EXCEPT ![p] = [x \in DOMAIN @ \cup {a} |-> IF x = a THEN word[a] ELSE @[x]]]
                ELSE answers
  /\ UNCHANGED <<predicted, proposal, value, phase, expect, moveTo, inputs, decided>>

Read(p, Q, a) == a \in Q
Failed(p, a) == answers[p][a] # expect[p][a]
(* Lines 21-25 and 36-40. *)
Learn(p, Q) == [a \in Acceptor |->
  IF a \notin Q THEN IF Predict THEN moveTo[p][a] ELSE expect[p][a]
  ELSE IF Failed(p, a) THEN answers[p][a] ELSE moveTo[p][a]]
Best(p, ps) == LET some == { a \in Acceptor : ps[a].av # None } IN
  IF some = {} THEN {IF AdoptBottom THEN None ELSE value[p]}
  ELSE { ps[a].av : a \in { x \in some : AdoptAny \/ \A y \in some : ps[y].ap <= ps[x].ap } }

(* Lines 20-27, then 29-33. *)
Prepared(p) ==
  /\ phase[p] = "prepare"
  /\ \E Q \in SUBSET DOMAIN answers[p] :
       /\ Majority(Q)
       /\ LET ps == Learn(p, Q) IN
          /\ predicted' = [predicted EXCEPT ![p] = ps]
          /\ IF ~GoesOn /\ \E a \in Q : Failed(p, a)
             THEN /\ phase' = [phase EXCEPT ![p] = "idle"]
                  /\ answers' = [answers EXCEPT ![p] = <<>>]
                  /\ UNCHANGED <<value, expect, moveTo, ops>>
             ELSE \E v \in Best(p, ps) :
                  LET to == [mp |-> proposal[p], ap |-> proposal[p], av |-> v] IN
                  /\ value' = [value EXCEPT ![p] = v]
                  /\ expect' = [expect EXCEPT ![p] = ps]
                  /\ moveTo' = [moveTo EXCEPT ![p] = [a \in Acceptor |-> to]]
                  /\ ops' = [ops EXCEPT ![p] = [a \in Acceptor |-> Append(@[a], [e |-> ps[a], n |-> to])]]
                  /\ answers' = [answers EXCEPT ![p] = <<>>]
                  /\ phase' = [phase EXCEPT ![p] = "accept"]
  /\ UNCHANGED <<word, proposal, inputs, decided>>

(* Lines 34-42. *)
Accepted(p) ==
  /\ phase[p] = "accept"
  /\ \E Q \in SUBSET DOMAIN answers[p] :
       /\ Majority(Q)
       /\ IF (\E a \in Q : Failed(p, a)) /\ ~(FailedCounts /\ \A a \in Q : answers[p][a].mp <= proposal[p])
          THEN /\ predicted' = [predicted EXCEPT ![p] = Learn(p, Q)]
               /\ phase' = [phase EXCEPT ![p] = "idle"]
               /\ UNCHANGED decided
          ELSE /\ decided' = decided \cup {<<p, proposal[p], value[p]>>}
               /\ phase' = [phase EXCEPT ![p] = "done"]
               /\ UNCHANGED predicted
  /\ answers' = [answers EXCEPT ![p] = <<>>]
  /\ UNCHANGED <<word, proposal, value, expect, moveTo, ops, inputs>>

Step(p) == Prepare(p) \/ Prepared(p) \/ Accepted(p) \/ \E a \in Acceptor : Carry(p, a)
Next == \E p \in Proposer : Step(p)
Spec == Init /\ [][Next]_vars
(* A proposer that is left alone after anything, with operations that are answered. *)
AloneSpec == Spec /\ WF_vars(Step(1))

(* App. A.3. *)
Validity == \A d \in decided : d[3] \in inputs
UniformAgreement == \A d, e \in decided : d[3] = e[3]
(* What the proof of Alg. 3 rests on: a proposal number stands for one value. *)
OneValuePerProposal == \A a, b \in Acceptor : (word[a].ap = word[b].ap /\ word[a].ap > 0) => word[a].av = word[b].av
Decision == <>(phase[1] = "done")
=============================================================================
