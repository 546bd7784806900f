-------------------------------- MODULE FCURB --------------------------------
(* Fail-consistent uniform reliable broadcast on heartbeats (FiDe, section 4.1 and App. A.4): when do heartbeats keep what HUC is promised? One  *)
(* sender, two receivers, two disjoint trees, discrete time. A heartbeat leaves on both trees every Period; each copy takes 0..Delta and each    *)
(* tree keeps its order; a receiver delivers what rides on a heartbeat with its first copy, and reports a crash when it has heard nothing for    *)
(* Timeout, or when it is told (active notification, section 3: nothing rides on it).                                                            *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Period, Delta, Timeout,
  Beats,    \* so many heartbeats, then the sender is gone
  MaxLoss,  \* so many copies are lost
  Cut,      \* TRUE: a crash may fall between the two copies of a heartbeat
  Compound, \* TRUE: that and a loss may come together
  Notify,   \* TRUE: the sender may end with a notification
  WaitLast  \* FALSE, as printed: a notification is a CRASH at once. TRUE: it names the last heartbeat, which is waited for (or the Timeout)

Receiver == 1..2
Tree == 1..2

VARIABLES
  up, n, since,    \* the sender: alive; heartbeats sent; time since the last one
  net,             \* copies: [r, tree, k ("beat", "notice"), n, age]
  losses, cut,
  silent,          \* by receiver: time since it heard a heartbeat
  got,             \* by receiver: heartbeats delivered
  told,            \* by receiver: the last heartbeat that a notification named, or Beats + 1
  reported,        \* by receiver: CRASH
  late             \* ghost: something was delivered after CRASH

vars == <<up, n, since, net, losses, cut, silent, got, told, reported, late>>

Copies(k, num, trees) == { [r |-> r, tree |-> t, k |-> k, n |-> num, age |-> 0] : r \in Receiver, t \in trees }
(* Whose turn it is on a tree: nothing sent earlier is still under way to that receiver. *)
First(c) == \A d \in net : (d.r = c.r /\ d.tree = c.tree) =>
              (c.k = "beat" /\ d.k = "beat" /\ c.n <= d.n) \/ (c.k = "beat" /\ d.k = "notice") \/ d = c

TypeOK ==
  /\ n \in 0..Beats /\ since \in 0..Period /\ losses \in 0..MaxLoss
  /\ \A c \in net : c.age \in 0..Delta
  /\ \A r \in Receiver : silent[r] \in 0..Timeout /\ got[r] \subseteq 1..Beats

Init ==
  /\ up = TRUE /\ n = 0 /\ since = Period /\ net = {} /\ losses = 0 /\ cut = FALSE
  /\ silent = [r \in Receiver |-> 0] /\ got = [r \in Receiver |-> {}]
  /\ told = [r \in Receiver |-> Beats + 1] /\ reported = [r \in Receiver |-> FALSE] /\ late = FALSE

Send ==
  /\ up /\ since = Period /\ n < Beats
  /\ n' = n + 1 /\ since' = 0
  /\ net' = net \cup Copies("beat", n', Tree)
  /\ UNCHANGED <<up, losses, cut, silent, got, told, reported, late>>

Crash ==
  /\ up /\ up' = FALSE
  /\ \/ UNCHANGED <<n, net, cut>>
     \/ /\ Cut /\ since = Period /\ n < Beats /\ (Compound \/ losses = 0)
        /\ \E t \in Tree : net' = net \cup Copies("beat", n + 1, {t})
        /\ n' = n + 1 /\ cut' = TRUE
     \/ /\ Notify
        /\ net' = net \cup Copies("notice", n, Tree)
        /\ UNCHANGED <<n, cut>>
  /\ UNCHANGED <<since, losses, silent, got, told, reported, late>>

Lose(c) ==
  /\ c \in net /\ losses < MaxLoss /\ (Compound \/ ~cut)
  /\ net' = net \ {c} /\ losses' = losses + 1
  /\ UNCHANGED <<up, n, since, cut, silent, got, told, reported, late>>

Receive(c) ==
  /\ c \in net /\ First(c)
  /\ net' = net \ {c}
  /\ IF c.k = "beat"
     THEN /\ late' = (late \/ (c.n \notin got[c.r] /\ reported[c.r]))
          /\ silent' = [silent EXCEPT ![c.r] = 0]
          /\ got' = [got EXCEPT ![c.r] = @ \cup {c.n}]
          /\ UNCHANGED <<told, reported>>
     ELSE /\ told' = [told EXCEPT ![c.r] = c.n]
          /\ reported' = [reported EXCEPT ![c.r] = @ \/ ~WaitLast \/ c.n = 0]
          /\ UNCHANGED <<late, silent, got>>
  /\ UNCHANGED <<up, n, since, losses, cut>>

Report(r) ==
  /\ ~reported[r]
  /\ silent[r] = Timeout \/ told[r] \in got[r]
  /\ reported' = [reported EXCEPT ![r] = TRUE]
  /\ UNCHANGED <<up, n, since, net, losses, cut, silent, got, told, late>>

(* Time passes when nothing is overdue. *)
Tick ==
  /\ \A c \in net : c.age < Delta
  /\ up => since < Period
  /\ \A r \in Receiver : ~reported[r] => silent[r] < Timeout
  /\ \E r \in Receiver : ~reported[r]
  /\ since' = IF up THEN since + 1 ELSE since
  /\ net' = { [c EXCEPT !.age = @ + 1] : c \in net }
  /\ silent' = [r \in Receiver |-> IF reported[r] THEN silent[r] ELSE silent[r] + 1]
  /\ UNCHANGED <<up, n, losses, cut, got, told, reported, late>>

Next == Send \/ Crash \/ Tick \/ (\E c \in net : Lose(c) \/ Receive(c)) \/ (\E r \in Receiver : Report(r))
Spec == Init /\ [][Next]_vars /\ WF_vars(Send \/ Tick \/ (\E c \in net : Receive(c)) \/ (\E r \in Receiver : Report(r)))
        /\ WF_vars(n = Beats /\ since = Period /\ Crash)

(* App. A.4. *)
NoCreation == \A r \in Receiver : got[r] \subseteq 1..n
FailConsistency == ~late
UniformAgreement == (~up /\ net = {}) => got[1] = got[2]
Validity == up => \A r \in Receiver : \A i \in 1..n : i \in got[r] \/ \E c \in net : c.r = r /\ c.k = "beat" /\ c.n = i
(* The detector's own (section 2.2). *)
Accuracy == \A r \in Receiver : reported[r] => ~up
Completeness == <>(\A r \in Receiver : reported[r])
=============================================================================
