------------------------------- MODULE RSBCAST -------------------------------
(* Reliable synchronous broadcast (Nano-consensus, Alg. 1): one sender, two receivers, redundant groups 1..Groups, a few messages one after the  *)
(* other, discrete time. Numbers of lines are the paper's.                                                                                       *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Groups, Delta,
  Messages,    \* so many, each sent when those before have arrived and no timer runs
  MaxLoss,     \* so many copies are lost
  Cut,         \* TRUE: the sender may crash between two copies
  InsertFirst, \* FALSE, as printed: line 9 tests `received` before line 11 puts the copy's group in
  StopTimer,   \* FALSE, as printed: nothing stops the timer of line 8
  PerMessage,  \* FALSE, as printed: one `received` for all messages
  FirstCopy    \* FALSE, as printed: line 9 waits for the copies of all groups. TRUE: the first copy of a message is delivered

Receiver == 1..2
Group == 1..Groups
Off == Delta + 2

VARIABLES
  up, sent,  \* the sender
  net,       \* copies: [r, g, m, age]
  received,  \* by receiver
  timer,     \* by receiver: time since it was started, or Off
  fault,     \* by receiver: NET-FAULT
  delivered, \* by receiver: how many times each message
  losses, cut

vars == <<up, sent, net, received, timer, fault, delivered, losses, cut>>

TypeOK ==
  /\ sent \in 0..Messages /\ losses \in 0..MaxLoss
  /\ \A c \in net : c.age \in 0..Delta
  /\ \A r \in Receiver : received[r] \subseteq Group /\ timer[r] \in 0..Off

Init ==
  /\ up = TRUE /\ sent = 0 /\ net = {} /\ losses = 0 /\ cut = FALSE
  /\ received = [r \in Receiver |-> {}] /\ timer = [r \in Receiver |-> Off] /\ fault = [r \in Receiver |-> FALSE]
  /\ delivered = [r \in Receiver |-> [m \in 1..Messages |-> 0]]

Copies(gs) == { [r |-> r, g |-> g, m |-> sent + 1, age |-> 0] : r \in Receiver, g \in gs }

(* Lines 3-5; what `received` is to the next message is line 2 over again, or not. *)
Broadcast(gs) ==
  /\ up /\ sent < Messages /\ net = {}
  /\ \A r \in Receiver : timer[r] = Off
  /\ sent' = sent + 1 /\ net' = Copies(gs)
  /\ received' = IF PerMessage THEN [r \in Receiver |-> {}] ELSE received
  /\ UNCHANGED <<timer, fault, delivered, losses>>

Whole == Broadcast(Group) /\ UNCHANGED <<up, cut>>
CutShort == Cut /\ \E gs \in SUBSET Group \ {{}, Group} : Broadcast(gs) /\ up' = FALSE /\ cut' = TRUE

Lose(c) ==
  /\ c \in net /\ losses < MaxLoss
  /\ net' = net \ {c} /\ losses' = losses + 1
  /\ UNCHANGED <<up, sent, received, timer, fault, delivered, cut>>

(* Lines 6-11. *)
Receive(c) ==
  LET r == c.r
      new == received[r] \cup {c.g}
      whole == IF FirstCopy THEN received[r] = {} ELSE IF InsertFirst THEN new = Group ELSE received[r] = Group
  IN
  /\ c \in net
  /\ net' = net \ {c}
  /\ received' = [received EXCEPT ![r] = new]
  /\ timer' = [timer EXCEPT ![r] = IF StopTimer /\ new = Group THEN Off ELSE IF received[r] = {} THEN 0 ELSE @]
  /\ delivered' = IF whole /\ ~fault[r] THEN [delivered EXCEPT ![r][c.m] = @ + 1] ELSE delivered
  /\ UNCHANGED <<up, sent, fault, losses, cut>>

(* Lines 12-13: more than Delta has passed. *)
TimedOut(r) ==
  /\ timer[r] = Delta + 1
  /\ timer' = [timer EXCEPT ![r] = Off]
  /\ fault' = [fault EXCEPT ![r] = TRUE]
  /\ UNCHANGED <<up, sent, net, received, delivered, losses, cut>>

Tick ==
  /\ net # {} \/ \E r \in Receiver : timer[r] # Off
  /\ \A c \in net : c.age < Delta
  /\ \A r \in Receiver : timer[r] # Delta + 1
  /\ net' = { [c EXCEPT !.age = @ + 1] : c \in net }
  /\ timer' = [r \in Receiver |-> IF timer[r] = Off THEN Off ELSE timer[r] + 1]
  /\ UNCHANGED <<up, sent, received, fault, delivered, losses, cut>>

Progress == Whole \/ Tick \/ (\E c \in net : Receive(c)) \/ (\E r \in Receiver : TimedOut(r))
Next == Progress \/ CutShort \/ \E c \in net : Lose(c)
Spec == Init /\ [][Next]_vars /\ WF_vars(Progress)

Quiet == net = {} /\ \A r \in Receiver : timer[r] = Off
(* Section 4.1: "the usual properties of uniform reliable broadcast", and in time. *)
NoDuplication == \A r \in Receiver : \A m \in 1..Messages : delivered[r][m] <= 1
NoCreation == \A r \in Receiver : \A m \in 1..Messages : delivered[r][m] > 0 => m <= sent
(* What was sent whole and lost nothing is delivered, within Delta of being sent. *)
Validity == (Quiet /\ losses = 0 /\ up) => \A r \in Receiver : \A m \in 1..sent : delivered[r][m] > 0
(* Delivered by one: delivered by every other, or that one is told that it cannot rely on the network. *)
UniformAgreement == Quiet => \A m \in 1..Messages : (\E r \in Receiver : delivered[r][m] > 0) => \A r \in Receiver : delivered[r][m] > 0 \/ fault[r]
(* NET-FAULT means a fault of the network. *)
FaultIsReal == (\E r \in Receiver : fault[r]) => losses > 0
=============================================================================
