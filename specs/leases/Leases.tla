------------------------------- MODULE Leases -------------------------------
(* Leased Active(M) (uKharon, Alg. 2, App. B.3 and C): one process, "old", on membership 1, another, "new", on membership 2, which is decided at *)
(* some time; discrete time, each process's clock at its own rate. Numbers of lines are the paper's. The coordinators' majority is one atomic    *)
(* look at what is decided, some time between the beginning and the end of a call.                                                               *)
EXTENDS Naturals

CONSTANTS
  Lease,       \* delta, in units of the clocks
  Wait,        \* what line 7 adds to t; Lease, as printed in Alg. 2; App. C adds a margin
  Slow, Fast,  \* a clock gains Slow or Fast units a tick, always as many
  StampAfter,  \* FALSE, as printed: line 4 takes t before it asks the majority. TRUE: after
  Letter,      \* TRUE: line 12 where it is printed, outside of line 10's test. FALSE, as meant (App. B.3): a majority that says no returns false
  Horizon      \* ticks

VARIABLES
  now, decided,    \* true time; TRUE once membership 2 is
  rate,            \* by process
  call,            \* by process: "idle", "asking" (began, t taken), "answered"
  t, ok,           \* by process: line 4's timestamp; what the majority said
  after,           \* by process: the call began after Active(2) had returned true
  start, end, has, \* by process: the lease; whether there is one
  newActive,       \* ghost: Active(2) has returned true
  bad              \* ghost: a later Active(1) returned true

vars == <<now, decided, rate, call, t, ok, after, start, end, has, newActive, bad>>
Process == {"old", "new"}
Clock(p) == now * rate[p]

TypeOK ==
  /\ now \in 0..Horizon
  /\ \A p \in Process : rate[p] \in Slow..Fast /\ call[p] \in {"idle", "asking", "answered"}

Init ==
  /\ now = 0 /\ decided = FALSE
  /\ rate \in [Process -> {Slow, Fast}]
  /\ call = [p \in Process |-> "idle"] /\ t = [p \in Process |-> 0] /\ ok = [p \in Process |-> FALSE]
  /\ after = [p \in Process |-> FALSE]
  (* The old one has had its membership for long: its first lease is over, and so is its wait. *)
  /\ start = [p \in Process |-> 0] /\ end = [p \in Process |-> 0] /\ has = [p \in Process |-> p = "old"]
  /\ newActive = FALSE /\ bad = FALSE

Returns(p, answer, young) ==
  /\ newActive' = (newActive \/ (p = "new" /\ answer))
  /\ bad' = (bad \/ (p = "old" /\ answer /\ young))

(* Lines 3-5 and 9. Active is called on decided memberships only. *)
Call(p) ==
  /\ call[p] = "idle" /\ (p = "new" => decided)
  /\ IF has[p] /\ start[p] <= Clock(p) /\ Clock(p) < end[p]
     THEN Returns(p, TRUE, newActive) /\ UNCHANGED <<call, t, after>>
     ELSE /\ call' = [call EXCEPT ![p] = "asking"]
          /\ t' = [t EXCEPT ![p] = Clock(p)]
          /\ after' = [after EXCEPT ![p] = newActive]
          /\ UNCHANGED <<newActive, bad>>
  /\ UNCHANGED <<now, decided, rate, ok, start, end, has>>

(* Lines 6 and 10: the majority, at one moment of the call. *)
Ask(p) ==
  /\ call[p] = "asking"
  /\ ok' = [ok EXCEPT ![p] = (p = "old") = ~decided]
  /\ call' = [call EXCEPT ![p] = "answered"]
  /\ UNCHANGED <<now, decided, rate, t, after, start, end, has, newActive, bad>>

(* Lines 7, 11-13. *)
Return(p) ==
  LET stamp == IF StampAfter THEN Clock(p) ELSE t[p] IN
  /\ call[p] = "answered"
  /\ call' = [call EXCEPT ![p] = "idle"]
  /\ IF ~ok[p] THEN Returns(p, Letter /\ has[p] /\ stamp > start[p], after[p]) /\ UNCHANGED <<start, end, has>>
     ELSE IF ~has[p]
     THEN /\ has' = [has EXCEPT ![p] = TRUE]
          /\ start' = [start EXCEPT ![p] = stamp + Wait]
          /\ end' = [end EXCEPT ![p] = stamp + Wait]
          /\ Returns(p, FALSE, after[p])
     ELSE /\ end' = [end EXCEPT ![p] = stamp + Lease]
          /\ Returns(p, stamp > start[p], after[p])
          /\ UNCHANGED <<start, has>>
  /\ t' = [t EXCEPT ![p] = 0] /\ ok' = [ok EXCEPT ![p] = FALSE] /\ after' = [after EXCEPT ![p] = FALSE]
  /\ UNCHANGED <<now, decided, rate>>

Decide == ~decided /\ decided' = TRUE /\ UNCHANGED <<now, rate, call, t, ok, after, start, end, has, newActive, bad>>
Tick == now < Horizon /\ now' = now + 1 /\ UNCHANGED <<decided, rate, call, t, ok, after, start, end, has, newActive, bad>>

Next == Decide \/ Tick \/ \E p \in Process : Call(p) \/ Ask(p) \/ Return(p)
Spec == Init /\ [][Next]_vars

(* App. B.1. *)
Monotonicity == ~bad
=============================================================================
