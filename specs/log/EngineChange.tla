----------------------------- MODULE EngineChange -----------------------------
(* A log over engines that each decide a sequence of instances, and the rule for changing the engine at an agreed index (B7): the entry Switch    *)
(* is the last that counts of its engine; the successor begins with the next index. Engines are what consensus promises and nothing more: one    *)
(* decision an index, of something that was handed in; they may decide ahead of what members have applied.                                       *)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS
  N, Entries,
  Void,   \* TRUE: what the old engine decides behind the switch counts for nobody. FALSE: it counts for those who saw it before they changed
  Again,  \* TRUE: what is not applied is handed in again, to the new engine
  Once    \* TRUE: an entry that was applied is not applied again

Member == 1..N
Entry == 1..Entries
Switch == 0
None == 99
Last == 2 * Entries + 2
Engine == 1..2

VARIABLES
  dec,     \* by engine and index
  first,   \* by engine: its first index; 0 while nobody knows
  offered, \* by engine: what was handed in
  told,    \* by member: entries that it has handed in to some engine
  epoch, next, log \* by member: its engine, the next index, what it applied

vars == <<dec, first, offered, told, epoch, next, log>>
Applied(m) == { log[m][i] : i \in 1..Len(log[m]) }

TypeOK == \A m \in Member : next[m] \in 1..(Last + 1) /\ epoch[m] \in Engine /\ Applied(m) \subseteq Entry

Init ==
  /\ dec = [e \in Engine |-> [i \in 1..Last |-> None]]
  /\ first = [e \in Engine |-> IF e = 1 THEN 1 ELSE 0]
  /\ offered = [e \in Engine |-> IF e = 1 THEN {Switch} ELSE {}]
  /\ told = [m \in Member |-> {}]
  /\ epoch = [m \in Member |-> 1] /\ next = [m \in Member |-> 1] /\ log = [m \in Member |-> <<>>]

Offer(m, x) ==
  /\ x \notin offered[epoch[m]]
  /\ IF Again THEN x \notin Applied(m) \/ ~Once ELSE x \notin UNION { told[q] : q \in Member }
  /\ offered' = [offered EXCEPT ![epoch[m]] = @ \cup {x}]
  /\ told' = [told EXCEPT ![m] = @ \cup {x}]
  /\ UNCHANGED <<dec, first, epoch, next, log>>

Decide(e, i, x) ==
  /\ first[e] > 0 /\ i >= first[e] /\ dec[e][i] = None
  /\ IF i = first[e] THEN TRUE ELSE dec[e][i - 1] # None
  /\ x \in offered[e] /\ \A j \in 1..Last : dec[e][j] # x
  /\ dec' = [dec EXCEPT ![e][i] = x]
  /\ UNCHANGED <<first, offered, told, epoch, next, log>>

(* The first index of the new engine, for this member. *)
Behind(m) == IF Void THEN next[m] + 1 ELSE CHOOSE j \in (next[m] + 1)..Last : dec[1][j] = None /\ \A k \in (next[m] + 1)..(j - 1) : dec[1][k] # None
Kept(m) == [ k \in 1..(Behind(m) - next[m] - 1) |-> dec[1][next[m] + k] ]

Apply(m) ==
  LET e == epoch[m] x == dec[e][next[m]] IN
  /\ next[m] <= Last /\ x # None
  /\ IF x = Switch
     THEN /\ epoch' = [epoch EXCEPT ![m] = 2]
          /\ first' = [first EXCEPT ![2] = IF @ = 0 THEN Behind(m) ELSE @]
          /\ log' = [log EXCEPT ![m] = @ \o Kept(m)]
          /\ next' = [next EXCEPT ![m] = Behind(m)]
     ELSE /\ log' = IF Once /\ x \in Applied(m) THEN log ELSE [log EXCEPT ![m] = Append(@, x)]
          /\ next' = [next EXCEPT ![m] = @ + 1]
          /\ UNCHANGED <<epoch, first>>
  /\ UNCHANGED <<dec, offered, told>>

Next ==
  \/ \E m \in Member : Apply(m) \/ \E x \in Entry : Offer(m, x)
  \/ \E e \in Engine : \E i \in 1..Last : \E x \in Entry \cup {Switch} : Decide(e, i, x)
Spec == Init /\ [][Next]_vars

Agreement == \A m, q \in Member : \A i \in 1..Len(log[m]) : i <= Len(log[q]) => log[m][i] = log[q][i]
NoRepeat == \A m \in Member : \A i, j \in 1..Len(log[m]) : i # j => log[m][i] # log[m][j]
NoLoss == ~ENABLED Next => \A m \in Member : Applied(m) = Entry
=============================================================================
